// The process's pool of threads that help to reduce (reduce_pool.hpp). The pool is made when the first communicator wants helpers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/lock.hpp"
#include "process/reduce_pool.hpp"
#include "reduce/reduce.hpp"

namespace isthmus::process {

class ReduceHelpers {
 public:
  // `asked`: the setting ReduceThreads; negative: as many as a communicator says. `spin_ns`: how long a helper polls.
  ReduceHelpers(int asked, int64_t spin_ns) : asked_(asked), spin_ns_(spin_ns) {}

  // As many threads as the setting says, or else `automatic`. The first communicator for which the number is not 0 makes the threads.
  // Throws Error(Resource).
  void want(int automatic);
  int threads() const noexcept;
  // As reduce::reduce, with the helpers that there are. Any thread.
  void reduce(const reduce::LocalReduction &task, size_t count) noexcept {
    if (ReducePool *const pool = pool_.load(std::memory_order_acquire)) pool->reduce(task, count);
    else reduce::reduce(task, count);
  }

 private:
  const int asked_;
  const int64_t spin_ns_;
  Mutex mutex_;
  std::unique_ptr<ReducePool> owner_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<ReducePool *> pool_{nullptr};  // never replaced once it is set
};

}  // namespace isthmus::process
