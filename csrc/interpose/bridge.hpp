// The way to the bridge: the library beside this one that knows of communicators which span vendors. Opened at the first call that may
// make one.
#pragma once

#include <atomic>

#include "front_door.hpp"

namespace isthmus::interpose {

extern std::atomic<uintptr_t> the_handles;  // where those of the bridge begin; nowhere as long as there is none
extern std::atomic<const Bridged *> the_calls;

// Whether the handle is one of ours. Relaxed: whoever has one has it from a call that made the range known before.
inline bool ours(const void *comm) noexcept {
  return reinterpret_cast<uintptr_t>(comm) - the_handles.load(std::memory_order_relaxed) < kHandleBytes;
}

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
const Bridged *open_bridge() noexcept;

}  // namespace isthmus::interpose
