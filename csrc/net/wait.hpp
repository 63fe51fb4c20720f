// Waiting in a caller's thread: with a deadline, and open to Ctrl-C.
#pragma once

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>

#include "base/clock.hpp"

namespace isthmus::net {

// `check` is called about every 50 ms by threads that wait in the functions below; not 0 makes them throw
// Error(Interrupted). For the whole process; nullptr: none.
void set_interrupt_check(int (*check)()) noexcept;
void check_interrupt();  // throws Error(Interrupted) if the check says so

// poll() until an event or the deadline; returns the number of descriptors with events, 0 at the deadline.
int wait_events(std::span<pollfd> fds, Deadline deadline);
// The events of one descriptor, 0 at the deadline.
short wait_events(int fd, short events, Deadline deadline);
void sleep_until(Deadline deadline);

// Waits until `ready()`; false at the deadline. `lock` is held on return.
template <class Ready>
bool wait_ready(std::condition_variable &changed, std::unique_lock<std::mutex> &lock, Deadline deadline, Ready ready) {
  while (!ready()) {
    if (deadline.passed()) return false;
    const int64_t slice = std::min<int64_t>(deadline.left_ns(), 50'000'000);
    changed.wait_for(lock, std::chrono::nanoseconds(slice));
    if (ready()) return true;
    lock.unlock();
    try {
      check_interrupt();
    } catch (...) {
      lock.lock();
      throw;
    }
    lock.lock();
  }
  return true;
}

}  // namespace isthmus::net
