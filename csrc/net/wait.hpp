// Waits of a caller's thread. Each has a deadline, and Ctrl-C interrupts each.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <span>

#include "base/clock.hpp"
#include "base/lock.hpp"

namespace isthmus::net {

// Threads that wait for a caller ask `check` about every 50 ms. Not 0: the program wants the wait to end (a signal in Python). The check is the whole
// process's; nullptr: there is none.
void set_interrupt_check(int (*check)()) noexcept;
bool interrupt_wanted() noexcept;  // asks the check
void check_interrupt();            // throws Error(Interrupted) where the check says so, and what the thread's own one throws
bool in_interrupt_check() noexcept;  // of this thread
void end_this_wait() noexcept;       // in the check: the wait that asks ends, whatever the check says

// A check of the thread that makes it, as long as it lives: for a thread that works for another one, on which alone the process's check answers.
// check_interrupt() calls it first, and lets pass what it throws.
class ThreadsOwnCheck {
 public:
  explicit ThreadsOwnCheck(std::function<void()> check);
  ~ThreadsOwnCheck();
  ThreadsOwnCheck(const ThreadsOwnCheck &) = delete;
  ThreadsOwnCheck &operator=(const ThreadsOwnCheck &) = delete;

 private:
  friend void check_interrupt();
  const std::function<void()> check_;
  const ThreadsOwnCheck *const before_;
};

// poll() until an event or the deadline. Returns the number of descriptors with events, 0 at the deadline.
int wait_events(std::span<pollfd> fds, Deadline deadline);
// The events of one descriptor, 0 at the deadline.
short wait_events(int fd, short events, Deadline deadline);
void sleep_until(Deadline deadline);

// Waits until `ready()`. False at the deadline. `ready` is called with the mutex held.
template <class Ready>
bool wait_ready(Condition &changed, Mutex &mutex, Deadline deadline, Ready ready) ISTHMUS_REQUIRES(mutex) {
  for (;;) {
    const int64_t slice = std::clamp<int64_t>(deadline.left_ns(), 0, 50'000'000);
    if (changed.wait_for(mutex, std::chrono::nanoseconds(slice), std::ref(ready))) return true;
    if (deadline.passed()) return false;
    const Unlocked outside(mutex);
    check_interrupt();
  }
}

}  // namespace isthmus::net
