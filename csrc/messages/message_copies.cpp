#include "messages/message_copies.hpp"

namespace isthmus::messages {

void MessageCopies::wait(Operation *op) noexcept {
  {
    const auto s = table_.lock();
    s->place_later(op);
    core_.context->staging().unplaced_sends().fetch_add(1, std::memory_order_release);
    if (!sends_.worth_waiting(op)) s->starve(op);
  }
  if (op->message.slot.number != 0) table_.slot_waiters.fetch_add(1, std::memory_order_relaxed);
  table_.want_worker();
}

bool MessageCopies::submit(Operation *op) {
  if (!op->message.place.own && !sends_.put(op) && !places_.stage_send(op)) {
    table_.lock()->starve(op);
    return false;
  }
  // A thread that sees that no send waits any more submits gates. The gates must not come before this copy, so the count falls behind the copy.
  struct Count {
    RankCore *core = nullptr;
    ~Count() {
      if (!core) return;
      core->context->staging().unplaced_sends().fetch_sub(1, std::memory_order_release);
      core->wake();
    }
  } count;
  if (table_.lock()->placed(op)) count.core = &core_;
  if (op->message.slot.number != 0) table_.slot_waiters.fetch_sub(1, std::memory_order_relaxed);
  const device::Entered entered(device_.copier->to_enter(*op));
  device_.copier->take(*op);  // from here on the operation may be over
  return true;
}

bool MessageCopies::submit_all(const Operation *behind) {
  if (behind->message.grouped) return all_submitted();
  for (;;) {
    Operation *op = nullptr;
    {
      const auto s = table_.lock();
      if (s->unstaged == 0) return true;
      op = s->taking.head;
      while (op && (op->carry.port != Port::Taken || op->carry.ticket.load(std::memory_order_relaxed) != 0))
        op = op->message.next;
    }
    if (!op || !submit(op)) return false;
  }
}

void MessageCopies::submit_before(const Operation *op) noexcept {
  if (all_submitted()) return;
  const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, op);
  if (!submitting || core_.failed() || !device_.copier) return;
  try {
    submit_all(op);
  } catch (const Error &e) { core_.not_submitted(*op, e); }
}

void MessageCopies::forget() noexcept {
  const auto s = table_.lock();
  for (Operation *o = s->taking.head; o; o = o->message.next)
    if (s->placed(o)) core_.context->staging().unplaced_sends().fetch_sub(1, std::memory_order_release);
}

// The first copy that this thread can submit: of a receive whose message has come, else of a send. `memory`: pinned memory may be there for a send
// that finds no slot, by the send's size (large, small). `later`: a send waits.
Operation *MessageCopies::next(bool (&memory)[2], bool &later) noexcept {
  const auto s = table_.lock();
  for (Operation *o = s->landing.head; o; o = o->message.next)
    if (o->carry.port == Port::Worker && o->carry.ticket.load(std::memory_order_relaxed) == 0) return o;
  for (Operation *o = s->taking.head; o; o = o->message.next) {
    if (o->carry.port != Port::Taken || o->carry.ticket.load(std::memory_order_relaxed) != 0) continue;
    if (o->message.place.own || sends_.is_free(o) || (memory[is_small(o)] && !sends_.worth_waiting(o))) return o;
    later = true;
  }
  return nullptr;
}

bool MessageCopies::carry() noexcept {
  table_.worker_came();
  bool memory[2] = {true, true};
  for (;;) {
    const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, nullptr);
    if (!submitting || core_.failed() || !device_.copier) return false;
    bool later = false;
    Operation *const op = next(memory, later);
    if (!op) return later;
    try {
      if (op->carry.port == Port::Worker) {
        slots_.submitted(*table_.lock(), op);
        const device::Entered entered(device_.copier->to_enter(*op));
        device_.copier->put(*op);
      } else if (!submit(op)) {
        memory[is_small(op)] = false;
      }
    } catch (const Error &e) {
      core_.not_submitted(*op, e);
      return false;
    }
  }
}

}  // namespace isthmus::messages
