#include "process/reduce_helpers.hpp"

namespace isthmus::process {

void ReduceHelpers::want(int automatic) {
  const int threads = asked_ < 0 ? automatic : asked_;
  const Lock lock(mutex_);
  if (threads <= 0 || owner_) return;
  owner_ = std::make_unique<ReducePool>(threads, spin_ns_);
  pool_.store(owner_.get(), std::memory_order_release);
}

int ReduceHelpers::threads() const noexcept {
  const ReducePool *const pool = pool_.load(std::memory_order_acquire);
  return pool ? pool->threads() : 0;
}

}  // namespace isthmus::process
