// A timer on which a thread sleeps in poll(). The kernel may end a sleep with a time limit later than was asked: by the thread's timer slack, 50 us
// where the thread has not chosen another. The slack of a thread of the program's is the program's own. A timer of its own has none.
#pragma once

#include <cstdint>

#include "net/fork_guard.hpp"

namespace isthmus::net {

class PromptTimer {
 public:
  PromptTimer();
  // A descriptor that becomes readable after so many nanoseconds, and not before. Whatever was armed before is forgotten. -1: there is none.
  int arm(int64_t ns) noexcept;

 private:
  GuardedFd fd_;
};

}  // namespace isthmus::net
