// The process's pool of threads that help with sums and copies, and with the sockets of a TCP link (helper_pool.hpp). The pool is made when the first
// communicator wants helpers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/lock.hpp"
#include "link/hands.hpp"
#include "process/helper_pool.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::process {

class Helpers final : public link::Hands {
 public:
  // `asked`: the setting ReduceThreads; negative: as many as a communicator says. `spin_ns`: how long a helper polls.
  Helpers(int asked, int64_t spin_ns) : asked_(asked), spin_ns_(spin_ns) {}

  // As many threads as the setting says, or else `automatic`. The first communicator for which the number is not 0 makes the threads.
  // Throws Error(Resource).
  void want(int automatic);
  int threads() const noexcept;
  // As reduce::reduce, with the helpers that there are. Any thread.
  void reduce(const reduce::LocalReduction &task, size_t count) noexcept {
    if (HelperPool *const pool = pool_.load(std::memory_order_acquire)) pool->reduce(task, count);
    else reduce::reduce(task, count);
  }
  // There are helpers, and a copy of that size is worth sharing.
  bool help_copy(size_t bytes) const noexcept {
    return bytes >= HelperPool::kLeast && pool_.load(std::memory_order_acquire) != nullptr;
  }
  // memcpy with the helpers that there are, past the caches or through them. Any thread.
  void copy(void *to, const void *from, size_t bytes, bool past_caches) noexcept;
  // As in link::Hands.
  bool any() const noexcept override { return pool_.load(std::memory_order_acquire) != nullptr; }
  void share(void (*work)(void *job, size_t i), void *job, size_t count) noexcept override;

 private:
  const int asked_;
  const int64_t spin_ns_;
  Mutex mutex_;
  std::unique_ptr<HelperPool> owner_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<HelperPool *> pool_{nullptr};  // never replaced once it is set
};

}  // namespace isthmus::process
