// OperationQueue has the collectives of one rank in one communicator. The collectives end one after the other, in the order of their calls.
//
// Thread rules: any thread appends. One thread at a time calls take_first(), with the right to execute. So what that thread got from first() or
// second() stays in the queue until that thread takes it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/assert.hpp"
#include "base/lock.hpp"
#include "collective/engine_names.hpp"

namespace isthmus::collective {

class OperationQueue {
 public:
  // The operation gets the next sequence number.
  void append(Operation *op) noexcept {
    const Lock lock(lock_);
    ISTHMUS_ASSERT(!op->life.next, "an operation is in one queue");
    op->sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (tail_) tail_->life.next = op;
    else head_.store(op, std::memory_order_release);
    tail_ = op;
  }
  uint64_t sequence() const noexcept { return sequence_.load(std::memory_order_relaxed); }  // of the last operation appended
  bool empty() const noexcept { return head_.load(std::memory_order_acquire) == nullptr; }  // without the lock
  Operation *first() const noexcept {                                                       // null: the queue is empty
    const Lock lock(lock_);
    return head_.load(std::memory_order_relaxed);
  }
  Operation *second() const noexcept {  // null: there is none
    const Lock lock(lock_);
    const Operation *const op = head_.load(std::memory_order_relaxed);
    return op ? op->life.next : nullptr;
  }
  Operation *take_first() noexcept {
    const Lock lock(lock_);
    Operation *const op = head_.load(std::memory_order_relaxed);
    if (!op) return nullptr;
    Operation *const next = op->life.next;
    ISTHMUS_ASSERT(!next || next->sequence == op->sequence + 1, "the operations of a queue have consecutive numbers");
    head_.store(next, std::memory_order_relaxed);
    if (!next) tail_ = nullptr;
    op->life.next = nullptr;
    return op;
  }
  // Calls `look` in order, while `look` returns true. Under the lock, so `look` must be short.
  template <class Look>
  void each(Look look) const noexcept {
    const Lock lock(lock_);
    for (const Operation *op = head_.load(std::memory_order_relaxed); op && look(*op); op = op->life.next) {}
  }

 private:
  mutable SpinLock lock_;
  std::atomic<Operation *> head_{nullptr};  // written under the lock
  Operation *tail_ ISTHMUS_GUARDED_BY(lock_) = nullptr;
  std::atomic<uint64_t> sequence_{0};
};

}  // namespace isthmus::collective
