// Threads that help to reduce. A reduction is one call of reduce::reduce.
//
//   1. The pool shares one reduction at a time. The reduction is cut into parts.
//   2. The helpers and the calling thread take the parts in turn.
//   3. The call returns when the last part is computed.
//
// The calling thread computes alone a reduction that is too short, and a reduction that comes while another one is shared. So a caller waits only for
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
  // In bytes of the result: the shortest reduction that is shared, and the smallest part. A helper that sleeps needs some microseconds to come.
  static constexpr size_t kLeast = 256 * 1024, kPart = 64 * 1024;

  // `spin_ns`: how long a helper polls. Throws Error(Resource) where no thread can be had.
  ReducePool(int threads, int64_t spin_ns);
  ~ReducePool();  // no thread may be inside reduce()
  ReducePool(const ReducePool &) = delete;
  ReducePool &operator=(const ReducePool &) = delete;

  int threads() const noexcept { return static_cast<int>(helpers_.size()); }
  // As reduce::reduce. Any thread, any number at a time. Allocates nothing.
  void reduce(const reduce::LocalReduction &task, size_t count) noexcept;

 private:
  void help() noexcept;
  void take_parts() noexcept;

  const int64_t spin_ns_;
  // Set while a reduction is shared. Its thread writes the fields below while no helper is inside.
  std::atomic_flag shared_ = ATOMIC_FLAG_INIT;
  reduce::LocalReduction task_{};
  size_t count_ = 0, part_ = 0;
  std::atomic<size_t> next_{0};      // the first element that no thread has taken
  std::atomic<uint64_t> opened_{0};  // rises with each reduction that is shared
  std::atomic<uint64_t> inside_{0};  // helpers that may read the task; with kClosed no more may come in
  static constexpr uint64_t kClosed = uint64_t{1} << 32;
  std::atomic<bool> stop_{false};
  Doorbell bell_;
  std::vector<std::thread> helpers_;
};

}  // namespace isthmus::process
