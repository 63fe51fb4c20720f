// The vendor's communicator of one rank, and the communicator's end. The adapter shares it with the threads that end it. Such a thread may be left
// behind in the library.
//
//   thread that submits                        thread that aborts         killer
//     locks `calls`
//     the library's call ...                     kill()          ----->     waits for `calls`
//     follows the call, sees the abort
//     unlocks `calls`                                            ----->     locks `calls`
//                                                                           CommAbort(), handle = nullptr
//                                                                           killed = true
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "base/lock.hpp"
#include "ccl/nccl_library.hpp"
#include "device/runtime.hpp"

namespace isthmus::ccl::nccl {

struct NcclHandle : std::enable_shared_from_this<NcclHandle> {
  NcclHandle(const NcclLibrary &of, std::shared_ptr<device::Stream> on) : library(of), stream(std::move(on)) {}
  // Begins a thread that aborts the vendor's communicator, because the vendor's call may wait for the device. Called once.
  void kill() noexcept;
  // Ends the vendor's communicator: destroys one that works, aborts one that is `broken`, waits for a kill() that was begun. Each of the vendor's
  // calls may wait for ever where a device hangs. So it has a thread and a deadline. `rank` is for the log.
  // Unchecked: no other thread uses the communicator when it ends, and the thread that kill() has begun may hold the lock for ever.
  void end(bool broken, int rank) noexcept ISTHMUS_UNCHECKED;

  const NcclLibrary &library;
  const std::shared_ptr<device::Stream> stream;  // of the communicator's device
  Mutex calls;  // held in the library's calls: kill() ends the communicator between two of them
  Handle handle ISTHMUS_GUARDED_BY(calls) = nullptr;
  std::atomic<bool> killed{false};  // the thread of kill() is done

 private:
  std::thread killer_;
};

}  // namespace isthmus::ccl::nccl
