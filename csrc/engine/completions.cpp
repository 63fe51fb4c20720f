#include "engine/completions.hpp"

#include "base/fork.hpp"
#include "engine/rank_core.hpp"

namespace isthmus::engine {
namespace {

struct Due {
  SpinLock lock;
  Operation *head ISTHMUS_GUARDED_BY(lock) = nullptr,
                  **tail ISTHMUS_GUARDED_BY(lock) = &head;  // through Operation::queue_next
};
PerProcess<Due> the_due;

// The first whose rank has no callback running, taken out; null: there is none.
Operation *take(Due &due) noexcept {
  const Lock lock(due.lock);
  for (Operation **at = &due.head; *at; at = &(*at)->queue_next) {
    Operation *const op = *at;
    if (op->core && op->core->delivering) continue;
    if (op->core) op->core->delivering = true;
    *at = op->queue_next;
    if (!*at) due.tail = at;
    op->queue_next = nullptr;
    return op;
  }
  return nullptr;
}

}  // namespace

const InChild Completions::forgets_([](void *) noexcept { due_.store(0, std::memory_order_relaxed); });

void Completions::add(Operation *op) noexcept {
  Due &due = *the_due;
  {
    const Lock lock(due.lock);
    *due.tail = op;
    due.tail = &op->queue_next;
  }
  due_.fetch_add(1, std::memory_order_release);
}

void Completions::deliver_due() noexcept {
  Due &due = *the_due;
  while (Operation *const op = take(due)) {
    due_.fetch_sub(1, std::memory_order_relaxed);
    op->call_back();
    if (op->core) {
      const Lock lock(due.lock);
      op->core->delivering = false;
    }
    OperationPool::instance().release(op);
  }
}

}  // namespace isthmus::engine
