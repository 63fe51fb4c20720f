// Threads that help to reduce: one fold at a time is cut into parts, which they and the thread that asked for it take in turn. The bits of
// the result do not depend on it (reduce.hpp). A fold that is too short to be worth it, or that comes while another is shared, is its own
// thread's alone; so nobody waits for the pool but for parts that somebody computes at that moment.
//
// A helper that has had nothing to do polls for a while and then sleeps on a futex.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/doorbell.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::engine {

class FoldPool {
 public:
  // Bytes of the result from which a fold is shared, and of its smallest part: a helper that sleeps needs some microseconds to come.
  static constexpr size_t kLeast = 256 * 1024, kPart = 64 * 1024;

  // `spin_ns`: how long a helper polls. Throws Error(Resource) where no thread can be had.
  FoldPool(int threads, int64_t spin_ns);
  ~FoldPool();  // nobody may be folding
  FoldPool(const FoldPool &) = delete;
  FoldPool &operator=(const FoldPool &) = delete;

  int threads() const noexcept { return static_cast<int>(helpers_.size()); }
  // As reduce::fold. Any thread, any number at a time. Allocates nothing.
  void fold(const reduce::Fold &task, size_t count) noexcept;

 private:
  void help() noexcept;
  void take_parts() noexcept;

  const int64_t spin_ns_;
  std::atomic_flag shared_ =
      ATOMIC_FLAG_INIT;  // a fold is being shared; its thread writes what follows while nobody is inside
  reduce::Fold task_{};
  size_t count_ = 0, part_ = 0;
  std::atomic<size_t> next_{0};      // the first element that nobody has taken
  std::atomic<uint64_t> opened_{0};  // rises with each fold that is shared
  std::atomic<uint64_t> inside_{0};  // helpers that may read the task; kClosed: no more may come in
  static constexpr uint64_t kClosed = uint64_t{1} << 32;
  std::atomic<bool> stop_{false};
  Doorbell bell_;
  std::vector<std::thread> helpers_;
};

}  // namespace isthmus::engine
