// The vendor's communicator of one rank, and its end. The adapter shares it with the threads that end it. Such a thread may be left behind
// in the library.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "base/lock.hpp"
#include "ccl/nccl_library.hpp"

namespace isthmus::ccl::nccl {

struct NcclHandle : std::enable_shared_from_this<NcclHandle> {
  explicit NcclHandle(const NcclLibrary &of) : library(of) {}
  // Another thread aborts the vendor's communicator, because the vendor's call may wait for the device. Once.
  void kill() noexcept;
  // Destroys what works; aborts what is `broken`, and waits for a kill(). Each of the calls may wait for ever where a device hangs, so it has
  // a thread and a deadline. `rank`: for the log.
  // Unchecked: no other thread calls this when it ends, and the one that kill() has begun may hold the lock for ever.
  void end(bool broken, int rank) noexcept ISTHMUS_UNCHECKED;

  const NcclLibrary &library;
  Mutex calls;  // held in the library's calls: kill() ends the communicator between two of them
  Handle handle ISTHMUS_GUARDED_BY(calls) = nullptr;
  std::atomic<bool> killed{false};  // kill() has ended it

 private:
  std::thread killer_;
};

}  // namespace isthmus::ccl::nccl
