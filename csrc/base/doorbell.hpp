// Where threads sleep until somebody rings: a futex that may lie in memory of several processes, so that others can wake them.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace isthmus {

// A full fence. ThreadSanitizer knows no fences, but a read-modify-write of one location that both sides share orders as well.
inline void full_fence([[maybe_unused]] std::atomic<uint32_t> &shared) noexcept {
#if defined(__SANITIZE_THREAD__)
  shared.fetch_add(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

struct alignas(64) Doorbell {
  std::atomic<uint32_t> sleepers{0};  // threads that sleep or are about to
  std::atomic<uint32_t> bell{0};      // futex word; its value only has to change

  // After a store that a sleeper may wait for. The fence orders that store before the load of `sleepers`; the sleeper's fence in
  // Nap orders its `sleepers` store before its last look at the condition: one of the two sees the other (Dekker).
  void ring() noexcept {
    full_fence(sleepers);
    if (sleepers.load(std::memory_order_relaxed) != 0) wake();
  }
  void wake() noexcept {
    bell.fetch_add(1, std::memory_order_release);
    ::syscall(SYS_futex, reinterpret_cast<uint32_t *>(&bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
};

// A nap: construct, look at the condition once more, then sleep() if it still does not hold.
class Nap {
 public:
  explicit Nap(Doorbell &bell) noexcept : bell_(bell) {
    bell_.sleepers.fetch_add(1, std::memory_order_relaxed);
    seen_ = bell_.bell.load(std::memory_order_acquire);
    full_fence(bell_.sleepers);
  }
  ~Nap() { bell_.sleepers.fetch_sub(1, std::memory_order_relaxed); }
  Nap(const Nap &) = delete;
  Nap &operator=(const Nap &) = delete;
  void sleep(int64_t ns) noexcept {
    timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    ::syscall(SYS_futex, reinterpret_cast<uint32_t *>(&bell_.bell), FUTEX_WAIT, seen_, &t, nullptr, 0);
  }

 private:
  Doorbell &bell_;
  uint32_t seen_;
};

}  // namespace isthmus
