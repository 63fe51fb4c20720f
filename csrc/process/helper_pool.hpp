// Threads that help with large sums and copies of host memory, and with what else is cut into parts (each()).
//
//   1. Whoever has such a job puts it on a desk. It is cut into parts.
//   2. The helpers and the calling thread take the parts in turn.
//   3. The call returns when the last part is done.
//
// The calling thread works alone where a job is too short, and where no desk is free. So a caller waits only for parts that a helper does at that
// moment. Helpers begin at desks of their own, so jobs that come at the same time share them. The bits of a sum do not depend on who computes a
// part (reduce.hpp).
//
// A helper without work polls for a while and then sleeps on a futex.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/doorbell.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::process {

class HelperPool {
 public:
  // In bytes of the result: the shortest job that is shared, and the smallest part. A helper that sleeps needs some microseconds to come.
  static constexpr size_t kLeast = 256 * 1024, kPart = 64 * 1024;
  static constexpr size_t kDesks = 4;

  // `spin_ns`: how long a helper polls. Throws Error(Resource) where no thread can be had.
  HelperPool(int threads, int64_t spin_ns);
  ~HelperPool();  // no thread may be inside reduce(), copy() or each()
  HelperPool(const HelperPool &) = delete;
  HelperPool &operator=(const HelperPool &) = delete;

  int threads() const noexcept { return static_cast<int>(helpers_.size()); }
  // As reduce::reduce. Any thread, any number at a time. Allocates nothing.
  void reduce(const reduce::LocalReduction &task, size_t count) noexcept;
  // memcpy; `past_caches`: with stores past the caches where the processor has such stores. The ranges may not overlap. Any thread, any number
  // at a time.
  void copy(void *to, const void *from, size_t bytes, bool past_caches) noexcept;
  // work(job, i) once for each i below `count`, each of them a part. Any thread, any number at a time. Allocates nothing.
  void each(void (*work)(void *job, size_t i), void *job, size_t count) noexcept;

 private:
  // Does `count` units of a job from unit `begin` on.
  using Part = void (*)(const void *job, size_t begin, size_t count);
  // Its thread writes the first four while no helper is inside.
  struct alignas(64) Desk {
    std::atomic_flag taken = ATOMIC_FLAG_INIT;
    Part part = nullptr;
    const void *job = nullptr;
    size_t count = 0, size = 0;               // units of the job, and of a part
    alignas(64) std::atomic<size_t> next{0};  // the first unit that no thread has taken
    std::atomic<uint64_t> inside{kClosed};    // helpers that may read the job; with kClosed no more may come in
  };
  static constexpr uint64_t kClosed = uint64_t{1} << 32;

  // A unit has `unit` bytes. False: nothing was done, because nobody would help.
  bool share(Part part, const void *job, size_t count, size_t unit) noexcept;
  // The same, in parts of `size` units, however short the job is.
  bool put_up(Part part, const void *job, size_t count, size_t size) noexcept;
  void wake_for(const Desk &desk, size_t parts) noexcept;  // as many of those that sleep as have a part
  static bool take_parts(Desk &desk) noexcept;             // false: there was none
  void help(size_t number) noexcept;

  const int64_t spin_ns_;
  std::array<Desk, kDesks> desks_;
  std::atomic<uint64_t> opened_{0};  // rises with each job that is shared
  std::atomic<bool> stop_{false};
  Doorbell bell_;
  std::vector<std::thread> helpers_;
};

}  // namespace isthmus::process
