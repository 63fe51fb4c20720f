// The calls of a vendor's that one device holds up for longer than anybody waits.
#pragma once

#include <atomic>
#include <new>
#include <set>
#include <string>

#include "base/lock.hpp"
#include "base/log.hpp"

namespace isthmus::device {

class StuckCalls {
 public:
  // A thread has been left behind in the call (static text), or has come back. let_go() may come before its hold().
  void hold(const char *call) noexcept {
    call_.store(call, std::memory_order_relaxed);
    threads_.fetch_add(1, std::memory_order_release);
  }
  void let_go() noexcept { threads_.fetch_sub(1, std::memory_order_release); }
  // The last call that a thread was left behind in; nullptr: all threads have come back.
  const char *call() const noexcept {
    return threads_.load(std::memory_order_acquire) > 0 ? call_.load(std::memory_order_relaxed) : nullptr;
  }
  // Warns, once for each text.
  void say(const std::string &text) noexcept {
    const Lock lock(said_mutex_);
    try {
      if (said_.insert(text).second) ISTHMUS_WARN("{}", text);
    } catch (const std::bad_alloc &) {}
  }

 private:
  std::atomic<const char *> call_{nullptr};
  std::atomic<int> threads_{0};
  Mutex said_mutex_;
  std::set<std::string> said_ ISTHMUS_GUARDED_BY(said_mutex_);
};

}  // namespace isthmus::device
