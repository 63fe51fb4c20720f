#include "engine/completions.hpp"

#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
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
  for (Operation **at = &due.head; *at; at = &(*at)->life.next) {
    Operation *const op = *at;
    Callbacks &of = op->core->callbacks;
    if (of.running) continue;
    of.running = true;
    of.by.store(std::this_thread::get_id(), std::memory_order_relaxed);
    *at = op->life.next;
    if (!*at) due.tail = at;
    op->life.next = nullptr;
    return op;
  }
  return nullptr;
}

thread_local bool in_callback = false;
const InChild forgets_in_callback([](void *) noexcept { in_callback = false; });

// While a callback of the operation runs. Its end is seen also where an interpreter that ends unwinds this thread.
class Running {
 public:
  Running(Due &due, Operation &op) noexcept : due_(due), op_(op) { in_callback = true; }
  ~Running() {
    in_callback = false;
    Callbacks &of = op_.core->callbacks;
    {
      const Lock lock(due_.lock);
      of.running = false;
      of.by.store({}, std::memory_order_relaxed);
    }
    op_.end.callback.store(Callback::Returned, std::memory_order_release);
    op_.core->wake();
    of.due.fetch_sub(1, std::memory_order_release);
  }
  Running(const Running &) = delete;
  Running &operator=(const Running &) = delete;

 private:
  Due &due_;
  Operation &op_;
};

}  // namespace

void Completions::add(Operation *op) noexcept {
  if (!op->core) {  // a group of nothing: nobody holds a lock
    op->call_back();
    return OperationPool::instance().release(op);
  }
  const std::shared_ptr<Context> context = op->core->context;  // the rank may be gone as soon as the callback has run
  op->core->callbacks.due.fetch_add(1, std::memory_order_relaxed);
  Due &due = *the_due;
  {
    const Lock lock(due.lock);
    *due.tail = op;
    due.tail = &op->life.next;
  }
  context->progress().call_soon(&Completions::deliver);
}

void Completions::deliver() {
  Due &due = *the_due;
  while (Operation *const op = take(due)) {
    {
      const Running running(due, *op);
      op->call_back();
    }
    OperationPool::instance().release(op);
  }
}

void Completions::wait(const RankCore &core, int64_t until_ns) noexcept {
  constexpr auto kLook = std::chrono::microseconds(200);
  while (core.callbacks.due.load(std::memory_order_acquire) != 0 &&
         core.callbacks.by.load(std::memory_order_relaxed) != std::this_thread::get_id() && now_ns() < until_ns)
    std::this_thread::sleep_for(kLook);
}

void Completions::wait(const Operation &op, int64_t until_ns) noexcept {
  until_ns = std::min(until_ns, now_ns() + kMostNs);
  const auto returned = [&] { return op.end.callback.load(std::memory_order_acquire) != Callback::Due; };
  while (!returned() && !in_callback && op.core && op.birth.here()) {
    const int64_t left = until_ns - now_ns();
    if (left <= 0) return;
    op.core->context->links().sleep_at_doorbell(std::min<int64_t>(left, 20'000'000), returned);
  }
}

}  // namespace isthmus::engine
