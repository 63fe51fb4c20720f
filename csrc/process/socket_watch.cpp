#include "process/socket_watch.hpp"

namespace isthmus::process {

thread_local const SocketWatch *SocketWatch::mine_ = nullptr;
thread_local uint32_t SocketWatch::sleeps_without_ = 0;
const InChild SocketWatch::forgets_([](void *) noexcept {
  mine_ = nullptr;
  sleeps_without_ = 0;
});

SocketWatch::Turn::Turn(SocketWatch &watch) noexcept : watch_(watch) {
  again_ = mine_ == &watch;
  if (again_) return;
  const auto take = [&] { return taken_ = !watch_.taken_.exchange(true, std::memory_order_seq_cst); };
  if (!take()) {
    watch_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (take()) watch_.sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (taken_) mine_ = &watch;
  else ++sleeps_without_;
}

SocketWatch::Turn::~Turn() {
  if (again_) return;
  if (!taken_) {
    --sleeps_without_;
    watch_.sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
  mine_ = nullptr;
  watch_.taken_.store(false, std::memory_order_seq_cst);
  if (watch_.sleepers_.load(std::memory_order_seq_cst) != 0) watch_.bell_.ring();
}

bool SocketWatch::others_sleep() const noexcept {
  return sleepers_.load(std::memory_order_seq_cst) > (sleeps_without_ ? 1u : 0u);
}

}  // namespace isthmus::process
