// Threads that help to reduce. A fold is one call of reduce::fold.
//
//   1. The pool shares one fold at a time. The fold is cut into parts.
//   2. The helpers and the calling thread take the parts in turn.
//   3. The call returns when the last part is computed.
//
// The calling thread computes alone a fold that is too short, and a fold that comes while another one is shared. So a caller waits only for
// parts that a helper computes at that moment. The bits of the result do not depend on who computes a part (reduce.hpp).
//
// A helper without work polls for a while and then sleeps on a futex.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/doorbell.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::process {

class ReducePool {
 public:
  // In bytes of the result: the shortest fold that is shared, and the smallest part. A helper that sleeps needs some microseconds to come.
  static constexpr size_t kLeast = 256 * 1024, kPart = 64 * 1024;

  // `spin_ns`: how long a helper polls. Throws Error(Resource) where no thread can be had.
  ReducePool(int threads, int64_t spin_ns);
  ~ReducePool();  // no thread may be inside fold()
  ReducePool(const ReducePool &) = delete;
  ReducePool &operator=(const ReducePool &) = delete;

  int threads() const noexcept { return static_cast<int>(helpers_.size()); }
  // As reduce::fold. Any thread, any number at a time. Allocates nothing.
  void fold(const reduce::Fold &task, size_t count) noexcept;

 private:
  void help() noexcept;
  void take_parts() noexcept;

  const int64_t spin_ns_;
  // Set while a fold is shared. Its thread writes the fields below while no helper is inside.
  std::atomic_flag shared_ = ATOMIC_FLAG_INIT;
  reduce::Fold task_{};
  size_t count_ = 0, part_ = 0;
  std::atomic<size_t> next_{0};      // the first element that no thread has taken
  std::atomic<uint64_t> opened_{0};  // rises with each fold that is shared
  std::atomic<uint64_t> inside_{0};  // helpers that may read the task; with kClosed no more may come in
  static constexpr uint64_t kClosed = uint64_t{1} << 32;
  std::atomic<bool> stop_{false};
  Doorbell bell_;
  std::vector<std::thread> helpers_;
};

}  // namespace isthmus::process
