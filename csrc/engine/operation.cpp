#include "engine/operation.hpp"

#include <cstring>
#include <new>

#include "base/assert.hpp"
#include "engine/completions.hpp"
#include "engine/rank_core.hpp"

namespace isthmus::engine {

namespace {
SpinLock frame_lock;
link::Outgoing *frame_free ISTHMUS_GUARDED_BY(frame_lock) = nullptr;
const InChild forgets_frames([](void *) ISTHMUS_UNCHECKED noexcept {  // the child's only thread
  new (&frame_lock) SpinLock;
  frame_free = nullptr;
});
PerProcess<OperationPool> the_pool;  // static destructors may release operations
}  // namespace

link::Outgoing *take_frame() {
  frame_lock.lock();
  link::Outgoing *f = frame_free;
  if (f) frame_free = f->next;
  frame_lock.unlock();
  if (f) return f;
  constexpr int kMore = 16;  // as OperationPool::take
  for (int i = 0; i < kMore; ++i) give_frame(*new link::Outgoing);
  return new link::Outgoing;
}

void give_frame(link::Outgoing &frame) {
  frame_lock.lock();
  frame.next = frame_free;
  frame_free = &frame;
  frame_lock.unlock();
}

OperationPool &OperationPool::instance() { return *the_pool; }

Operation *OperationPool::take() {
  lock_.lock();
  Operation *op = free_;
  if (op) free_ = op->life.next;
  lock_.unlock();
  if (!op) {
    // Several operations are made at once. The progress thread may still hold one when a caller asks for the next, and steady traffic is to
    // allocate nothing.
    constexpr int kMore = 16;
    for (int i = 0; i < kMore; ++i) {
      Operation *more = new Operation;
      lock_.lock();
      more->life.next = free_;
      free_ = more;
      lock_.unlock();
    }
    op = new Operation;
  }
  op->life.next = nullptr;
  op->life.references.store(1, std::memory_order_relaxed);
  return op;
}

void OperationPool::release(Operation *op) noexcept {
  const uint32_t before = op->life.references.fetch_sub(1, std::memory_order_acq_rel);
  ISTHMUS_ASSERT(before != 0, "a reference is given back once");
  if (before != 1) return;
  op->keep.reset();
  op->reset();
  lock_.lock();
  op->life.next = free_;
  free_ = op;
  lock_.unlock();
}

namespace {

template <class T>
void renew(T &part) noexcept {
  std::destroy_at(&part);
  std::construct_at(&part);
}

}  // namespace

// A collective leaves the parts of a message as they are, and the other way round.
void Operation::reset() noexcept {
  if (is_p2p() || message.grouped) {
    renew(message);
    for (Operation *one : cut.parts) OperationPool::instance().release(one);
    std::vector<Operation *> parts = std::move(cut.parts);  // its capacity
    parts.clear();
    renew(cut);
    cut.parts = std::move(parts);
    renew(carry);
    frame.matcher = nullptr;
    frame.operation = nullptr;
  }
  if (!is_p2p()) renew(run);
  call = Call{};
  label.clear();
  sequence = digest = 0;
  time = {};
  rank = nullptr;
  core = nullptr;
  plan.reset();
  blocks.values.clear();
  blocks.input = blocks.output = 0;
  kept = {};
  // Not renewed: who has ended an inline op may still have the lock, and the op be used again already.
  end.ended.store(0, std::memory_order_relaxed);
  end.result = Code::Ok;
  end.text.clear();
  end.ranks.clear();
  end.done = nullptr;
  end.context = nullptr;
  end.callback.store(Callback::None, std::memory_order_relaxed);
  end.children.store(0, std::memory_order_relaxed);
  end.parent = nullptr;
  end.mark = nullptr;
  life.next = nullptr;
}

void Operation::keep_output() {
  if (kept.size == 0) return;
  kept.bytes.reset(new (std::nothrow) std::byte[kept.size]);
  if (!kept.bytes)
    fail(Code::Resource, "{}: no memory to keep {} bytes for the case that it fails; call without keep",
         collective_name(call.collective), kept.size);
  std::memcpy(kept.bytes.get(), call.output, kept.size);
}

// Not noexcept: an interpreter that ends may end the thread in its callback, which unwinds the thread.
void Operation::call_back() {
  end.lock.lock();
  auto *const callback = std::exchange(end.done, nullptr);
  void *const with = end.context;
  end.lock.unlock();
  callback(with, static_cast<int>(end.result), end.text.c_str());
}

void finish_operation(Operation *op, Code result, std::string text, int64_t ended_ns) noexcept {
  // Once `ended` is set, an inline op may be used again at once. So everything is read before.
  Operation *parent = op->end.parent;
  const bool pooled = !op->life.inline_op;
  Context *context = op->core && pooled ? op->core->context.get() : nullptr;
  if (parent && result != Code::Ok) {
    parent->end.lock.lock();
    if (parent->end.result == Code::Ok) {
      parent->end.result = result;
      parent->end.text = text;
      parent->end.ranks = op->end.ranks;
    }
    parent->end.lock.unlock();
  }
  // From here on nobody else touches the program's memory.
  if (op->kept.bytes && result != Code::Ok) std::memcpy(op->call.output, op->kept.bytes.get(), op->kept.size);
  if (op->cut.is_whole) op->core->record(*op, result, ended_ns);
  op->time.ended_ns = ended_ns;
  op->end.result = result;
  op->end.text = std::move(text);
  op->end.lock.lock();
  const bool calls = op->end.done != nullptr;
  op->end.ended.store(1, std::memory_order_release);
  op->end.lock.unlock();
  if (context) context->wake();     // whoever waits for it in this process sleeps on its doorbell
  if (calls) Completions::add(op);  // with the engine's reference
  else if (pooled) OperationPool::instance().release(op);
  // Last: the callback of a group comes behind those of its operations.
  if (parent && parent->end.children.fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_operation(parent, parent->end.result, std::string(parent->end.text), ended_ns);
}

}  // namespace isthmus::engine
