// The functions that streams of one device call on the host, where the runtime of CANN has no thread of its own for them:
// one of ours asks for them (aclrtProcessReport), and streams are subscribed to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/lock.hpp"
#include "device/acl_abi.hpp"

namespace isthmus::device {

class AclReports {
 public:
  explicit AclReports(const acl_abi::Functions &functions) : f_(functions) {}
  AclReports(const AclReports &) = delete;
  AclReports &operator=(const AclReports &) = delete;

  struct Subscribed {
    explicit Subscribed(acl_abi::Handle s) : stream(s) {}
    const acl_abi::Handle stream;
    std::atomic<uint64_t> launched{0}, called{0};  // counted by whoever launches, and by what was launched
  };
  // Before a launch on a stream of the device whose context it is; all calls but the first only look it up. The library's
  // answer.
  acl_abi::Result subscribe(acl_abi::Handle context, acl_abi::Handle stream, Subscribed *&subscribed);
  // Before the stream ends, when all that it held is done: what it has launched may still have to be called.
  void forget(acl_abi::Handle stream, const Deadline &deadline) noexcept;

 private:
  void start(acl_abi::Handle context) ISTHMUS_REQUIRES(mutex_);
  void serve(acl_abi::Handle context) noexcept;

  const acl_abi::Functions &f_;
  Mutex mutex_;  // held over the library's call that subscribes: a stream is subscribed once
  std::vector<std::unique_ptr<Subscribed>> streams_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<uint64_t> thread_{0};  // as the library numbers it; 0: none yet
  std::atomic<bool> stop_{false}, ended_{false};
};

}  // namespace isthmus::device
