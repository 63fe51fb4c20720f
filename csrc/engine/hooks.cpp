#include "engine/hooks.hpp"

#include <atomic>

#include "base/fork.hpp"

namespace isthmus::engine {
namespace {

std::atomic<int (*)()> interrupt_check{nullptr};
std::atomic<void (*)()> late_hook{nullptr};
const InChild forgets_hook([](void *) noexcept { late_hook.store(nullptr); });

}  // namespace

void set_interrupt_check(int (*check)()) noexcept { interrupt_check.store(check, std::memory_order_release); }

bool interrupt_wanted() noexcept {
  auto *const check = interrupt_check.load(std::memory_order_acquire);
  return check && check() != 0;
}

void set_late_hook(void (*hook)()) noexcept { late_hook.store(hook, std::memory_order_release); }

void call_late_hook() noexcept {
  if (auto *const hook = late_hook.load(std::memory_order_acquire)) hook();
}

}  // namespace isthmus::engine
