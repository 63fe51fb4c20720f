// The functions that streams of one device call on the host, where the runtime of CANN has no thread of its own for such calls. A thread of ours
// asks for the calls (aclrtProcessReport), and streams are subscribed to the thread.
//
//   caller                                stream                        our thread
//     subscribe(): once for a stream                                      aclrtProcessReport(): waits
//     aclrtLaunchCallback()      - - ->     comes to the callback  --->   runs the function
//     launched += 1                                                       called += 1
//     forget(): waits until called is launched, then unsubscribes
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
    std::atomic<uint64_t> launched{0}, called{0};  // the caller counts launches; the launched function counts calls
  };
  // Called before a launch on a stream of the device that has the context. Only the first call for a stream subscribes; later calls look the
  // stream up. Returns the library's answer.
  acl_abi::Result subscribe(acl_abi::Handle context, acl_abi::Handle stream, Subscribed *&subscribed);
  // Called before the stream ends, when all that the stream held is done. What was launched may still have to be called.
  void forget(acl_abi::Handle stream, const Deadline &deadline) noexcept;

 private:
  void start(acl_abi::Handle context) ISTHMUS_REQUIRES(mutex_);
  void serve(acl_abi::Handle context) noexcept;

  const acl_abi::Functions &f_;
  Mutex mutex_;  // held over the library's call that subscribes, so a stream is subscribed once
  std::vector<std::unique_ptr<Subscribed>> streams_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<uint64_t> thread_{0};  // the thread, as the library numbers it; 0: none yet
  std::atomic<bool> stop_{false}, ended_{false};
};

}  // namespace isthmus::device
