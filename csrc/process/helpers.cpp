#include "process/helpers.hpp"

namespace isthmus::process {

void Helpers::want(int automatic) {
  const int threads = asked_ < 0 ? automatic : asked_;
  const Lock lock(mutex_);
  if (threads <= 0 || owner_) return;
  owner_ = std::make_unique<HelperPool>(threads, spin_ns_);
  pool_.store(owner_.get(), std::memory_order_release);
}

int Helpers::threads() const noexcept {
  const HelperPool *const pool = pool_.load(std::memory_order_acquire);
  return pool ? pool->threads() : 0;
}

void Helpers::copy(void *to, const void *from, size_t bytes, bool past_caches) noexcept {
  if (HelperPool *const pool = pool_.load(std::memory_order_acquire)) return pool->copy(to, from, bytes, past_caches);
  reduce::copy(to, from, bytes, past_caches);
}

void Helpers::share(void (*work)(void *job, size_t i), void *job, size_t count) noexcept {
  if (HelperPool *const pool = pool_.load(std::memory_order_acquire)) return pool->each(work, job, count);
  for (size_t i = 0; i < count; ++i) work(job, i);
}

}  // namespace isthmus::process
