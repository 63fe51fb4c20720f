// The functions that streams of one device call on the host, where the runtime of CANN has no thread of its own for them: one of ours asks
// for them (aclrtProcessReport), and streams are subscribed to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "device/acl_abi.hpp"

namespace isthmus::device {

class AclReports {
 public:
  explicit AclReports(const acl_abi::Functions &functions) : f_(functions) {}
  AclReports(const AclReports &) = delete;
  AclReports &operator=(const AclReports &) = delete;

  // Before the first launch on a stream of the device whose context it is; a later call only looks it up. The library's answer.
  acl_abi::Result subscribe(acl_abi::Handle context, acl_abi::Handle stream);
  // Before the stream ends.
  void forget(acl_abi::Handle stream) noexcept;

 private:
  void start(acl_abi::Handle context);
  void serve(acl_abi::Handle context) noexcept;

  const acl_abi::Functions &f_;
  std::mutex mutex_;
  std::vector<acl_abi::Handle> streams_;
  std::atomic<uint64_t> thread_{0};  // as the library numbers it; 0: none yet
  std::atomic<bool> stop_{false}, ended_{false};
};

}  // namespace isthmus::device
