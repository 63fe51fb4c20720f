#include "process/socket_watch.hpp"

#include "base/assert.hpp"

namespace isthmus::process {

thread_local bool SocketWatch::sleeps_ = false;
thread_local bool SocketWatch::sleeps_without_ = false;
const InChild SocketWatch::forgets_([](void *) noexcept { sleeps_ = sleeps_without_ = false; });

SocketWatch::Turn::Turn(SocketWatch &watch) noexcept : watch_(watch) {
  ISTHMUS_ASSERT(!sleeps_, "a thread does not sleep inside of a sleep: no callback of the program's runs there");
  sleeps_ = true;
  const auto take = [&] { return mine_ = !watch_.taken_.exchange(true, std::memory_order_seq_cst); };
  if (!take()) {
    watch_.sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (take()) watch_.sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }
  sleeps_without_ = counted_ = !mine_;
}

SocketWatch::Turn::Turn(SocketWatch &watch, IfIdle) noexcept : watch_(watch) {
  ISTHMUS_ASSERT(!sleeps_, "a thread does not sleep inside of a sleep: no callback of the program's runs there");
  sleeps_ = true;
  mine_ = watch_.sleepers_.load(std::memory_order_relaxed) == 0 && !watch_.taken_.exchange(true, std::memory_order_seq_cst);
}

SocketWatch::Turn::~Turn() {
  sleeps_ = sleeps_without_ = false;
  if (counted_) watch_.sleepers_.fetch_sub(1, std::memory_order_relaxed);
  if (!mine_) return;
  watch_.taken_.store(false, std::memory_order_seq_cst);
  if (watch_.sleepers_.load(std::memory_order_seq_cst) != 0) watch_.bell_.ring();
}

bool SocketWatch::others_sleep() const noexcept {
  return sleepers_.load(std::memory_order_seq_cst) > (sleeps_without_ ? 1u : 0u);
}

}  // namespace isthmus::process
