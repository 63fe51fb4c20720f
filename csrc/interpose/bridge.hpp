// The way to the bridge: the library beside this one that knows of communicators which span vendors. Opened at the first call that may
// make one.
#pragma once

#include <atomic>

#include "door.hpp"

namespace isthmus::interpose {

extern std::atomic<uintptr_t> the_handles;  // where those of the bridge begin; nowhere as long as there is none
extern std::atomic<const Calls *> the_calls;

// Whether the handle is one of ours. Relaxed: whoever has one has it from a call that made the range known before.
inline bool ours(Comm comm) noexcept {
  return reinterpret_cast<uintptr_t>(comm) - the_handles.load(std::memory_order_relaxed) < kHandleBytes;
}
// Of a caller that has one.
inline const Calls *the_bridge() noexcept { return the_calls.load(std::memory_order_acquire); }
// A handle that a program got in a group, before it was known whose communicator it is, may stand for one of the vendor's: that, or null.
inline Comm behind(Comm comm) noexcept { return the_bridge()->behind(comm); }

Thread &thread() noexcept;  // the caller's
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
// Null where there is no bridge, no real library, ISTHMUS_DISABLE=1, or the real library itself calls.
const Calls *open_bridge() noexcept;
inline const Calls *bridge(const Inside &inside) noexcept { return inside.first() ? open_bridge() : nullptr; }

}  // namespace isthmus::interpose
