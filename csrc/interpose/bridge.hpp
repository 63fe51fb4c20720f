// The way to the bridge. The bridge is the library beside this front door, and knows of communicators that span vendors. A
// front door opens the bridge at the first call that may make such a communicator.
#pragma once

#include <atomic>

#include "front_door.hpp"

namespace isthmus::interpose {

extern std::atomic<uintptr_t>
    the_handles;  // where the bridge's handles begin; an address nowhere, as long as there is no bridge
extern std::atomic<const Bridged *> the_calls;

// Whether the handle is one of the bridge's. The load is relaxed: a thread has such a handle from a call, and that call has
// stored the range before.
inline bool ours(const void *comm) noexcept {
  return reinterpret_cast<uintptr_t>(comm) - the_handles.load(std::memory_order_relaxed) < kHandleBytes;
}

ThreadState &thread() noexcept;  // the caller's

// A call of a routed function is on the stack of this thread. The functions that the real library calls meanwhile are the
// real library's own affair.
class Inside {
 public:
  Inside() noexcept : first_(thread().inside++ == 0) {}
  ~Inside() { --thread().inside; }
  Inside(const Inside &) = delete;
  Inside &operator=(const Inside &) = delete;
  bool first() const noexcept { return first_; }

 private:
  const bool first_;
};
// Opens the bridge. Null: there is no bridge, there is no real library, or ISTHMUS_DISABLE=1.
const Bridged *open_bridge() noexcept;

}  // namespace isthmus::interpose
