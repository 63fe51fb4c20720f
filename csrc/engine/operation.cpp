#include "engine/operation.hpp"

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
  if (op) free_ = op->queue_next;
  lock_.unlock();
  if (!op) {
    // Several operations are made at once. The progress thread may still hold one when a caller asks for the next, and steady traffic is to
    // allocate nothing.
    constexpr int kMore = 16;
    for (int i = 0; i < kMore; ++i) {
      Operation *more = new Operation;
      lock_.lock();
      more->queue_next = free_;
      free_ = more;
      lock_.unlock();
    }
    op = new Operation;
  }
  op->queue_next = nullptr;
  op->references.store(1, std::memory_order_relaxed);
  return op;
}

void OperationPool::release(Operation *op) noexcept {
  if (op->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  op->keep.reset();
  op->reset();
  lock_.lock();
  op->queue_next = free_;
  free_ = op;
  lock_.unlock();
}

void Operation::reset() noexcept {
  call = Call{};
  sequence = digest = 0;
  submitted_ns = ended_ns = deadline_ns = 0;
  rank = nullptr;
  core = nullptr;
  plan.reset();
  blocks.clear();
  in_blocks = out_blocks = 0;
  phase = Phase::Fresh;
  next_rank = told_rank = 0;
  at = {};
  blocked_on = -1;
  ring = scratch = 0;
  lent = on_device = short_of_room = lent_in = lent_out = false;
  broken.store(false, std::memory_order_relaxed);
  bounce = {};
  message_id = 0;
  received.store(0, std::memory_order_relaxed);
  match_next = nullptr;
  source = -1;
  whole = 0;
  part = 0;
  parts_source = -1;
  in_parts = false;
  port = Port::None;
  arrived.store(false, std::memory_order_relaxed);
  place = {};
  slot = {};
  send_slot = nullptr;
  matcher = nullptr;
  unplaced = short_of_memory = grouped = ungated = held = false;
  spilled.reset();
  lies = -1;
  ticket.store(0, std::memory_order_relaxed);
  port_next = nullptr;
  begun = nullptr;
  for (Operation *one : parts) OperationPool::instance().release(one);
  parts.clear();
  children.store(0, std::memory_order_relaxed);
  parent = nullptr;
  ended.store(0, std::memory_order_relaxed);
  result = Code::Ok;
  text.clear();
  label.clear();
  done = nullptr;
  done_context = nullptr;
  queue_next = nullptr;
}

void Operation::call_back() noexcept {
  callback_lock.lock();
  auto *const callback = std::exchange(done, nullptr);
  void *const with = done_context;
  callback_lock.unlock();
  callback(with, static_cast<int>(result), text.c_str());
}

void finish_operation(Operation *op, Code result, std::string text, int64_t ended_ns) noexcept {
  // Once `ended` is set, an inline op may be used again at once. So everything is read before.
  Operation *parent = op->parent;
  const bool pooled = !op->inline_op;
  Context *context = op->core && pooled ? op->core->context.get() : nullptr;
  if (parent && result != Code::Ok) {
    parent->callback_lock.lock();
    if (parent->result == Code::Ok) {
      parent->result = result;
      parent->text = text;
    }
    parent->callback_lock.unlock();
  }
  if (op->in_parts) op->core->record(*op, result, ended_ns);
  op->ended_ns = ended_ns;
  op->result = result;
  op->text = std::move(text);
  op->callback_lock.lock();
  const bool calls = op->done != nullptr;
  op->ended.store(1, std::memory_order_release);
  op->callback_lock.unlock();
  if (parent && parent->children.fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_operation(parent, parent->result, std::string(parent->text), ended_ns);
  if (context) context->wake();     // a thread of this process that waits for the operation sleeps on the process's doorbell
  if (calls) Completions::add(op);  // with the engine's reference
  else if (pooled) OperationPool::instance().release(op);
}

}  // namespace isthmus::engine
