#include "engine/hooks.hpp"

#include <atomic>

#include "base/fork.hpp"

namespace isthmus::engine {
namespace {

std::atomic<void (*)()> late_hook{nullptr};
const InChild forgets_hook([](void *) noexcept { late_hook.store(nullptr); });

}  // namespace

void set_late_hook(void (*hook)()) noexcept { late_hook.store(hook, std::memory_order_release); }

void call_late_hook() noexcept {
  if (auto *const hook = late_hook.load(std::memory_order_acquire)) hook();
}

}  // namespace isthmus::engine
