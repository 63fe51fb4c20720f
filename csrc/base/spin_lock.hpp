#pragma once

#include <atomic>

#include "base/thread_safety.hpp"

namespace isthmus {

// A lock for a few instructions, never held across a system call.
class ISTHMUS_CAPABILITY("mutex") SpinLock {
 public:
  void lock() noexcept ISTHMUS_ACQUIRE() {
    while (flag_.test_and_set(std::memory_order_acquire))
      while (flag_.test(std::memory_order_relaxed)) pause();
  }
  bool try_lock() noexcept ISTHMUS_TRY_ACQUIRE(true) { return !flag_.test_and_set(std::memory_order_acquire); }
  void unlock() noexcept ISTHMUS_RELEASE() { flag_.clear(std::memory_order_release); }
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

 private:
  std::atomic_flag flag_;
};

}  // namespace isthmus
