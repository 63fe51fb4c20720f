#include "base/fork.hpp"

#include <pthread.h>

namespace isthmus {

namespace detail {
constinit std::atomic<uint32_t> the_generation{0};
}

struct ChildHooks {
  static constinit InChild *first, *last;
  static void run() noexcept {
    detail::the_generation.fetch_add(1, std::memory_order_relaxed);
    for (const InChild *hook = first; hook; hook = hook->next_) hook->function_(hook->context_);
  }
};
constinit InChild *ChildHooks::first = nullptr, *ChildHooks::last = nullptr;

InChild::InChild(Function function, void *context) noexcept : function_(function), context_(context) {
  (ChildHooks::last ? ChildHooks::last->next_ : ChildHooks::first) = this;
  ChildHooks::last = this;
}

namespace {
[[maybe_unused]] const int installed = ::pthread_atfork(nullptr, nullptr, ChildHooks::run);
}

}  // namespace isthmus
