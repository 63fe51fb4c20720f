// Messages in device memory: cut into parts, brought to pinned memory before they are sent, and from there when they have come. What the
// links and the matching do is the same for all messages (messages.cpp); here is what is before and behind it.
//
// Who submits the copies. A send's: the caller, inside the call. A receive's on a user's stream: the caller too, behind a gate that opens when the
// message has come; where the device has no gates, or pinned memory is short for a large one, the call returns when it has come. A receive's
// without a stream: the device worker, when it has come. A gate there could stand, in the one queue of a device, before the copy of a send
// that the peer waits for.
#include <algorithm>
#include <bit>
#include <chrono>
#include <new>
#include <optional>

#include "base/clock.hpp"
#include "base/copy.hpp"
#include "base/fork.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {
namespace {

using p2p::Share;

struct Held {
  Operation *op;
  void *stream;  // that comes behind a receive
};
thread_local std::vector<Held> held_here;  // what this thread has to see to before its call returns
const InChild forgets_held([](void *) noexcept { held_here.clear(); });

}  // namespace

// ---- pinned memory -------------------------------------------------------------------------------------------------------------------

// What is left of a long message waits with the rest of it.
bool Member::small(const Operation *op) noexcept { return op->call.bytes <= kEagerMessage && op->whole == 0; }
bool Member::stage_send(Operation *op) noexcept { return stage(op, small(op) ? Share::SmallSend : Share::Send); }

std::optional<p2p::Piece> Member::take_ahead(uint64_t bytes, bool small) noexcept {
  if (!small) return pool_.take(bytes, Share::Ahead);
  bool wide;
  {
    const Lock lock(match_lock_);
    wide = chain_.wide();
  }
  return pool_.take(wide ? bytes : kEagerMessage, Share::SmallAhead, !wide);
}

bool Member::stage_ahead(Operation *op) noexcept {
  if (const auto free = take_ahead(op->call.bytes, small(op))) return give_place(op, *free);
  return op->place.inherits = small(op);
}

void Member::lend(Operation *op) noexcept {
  if (small(op) && !op->slot.in_slot) chain_.lend(op->place);
}

// The copy of `op` has landed.
void Member::hand_on(Operation *op) noexcept {
  if (op->port == Port::Expected) chain_.hand_on(op->place);
}

// A small send that can only be announced leaves its place to others, where these are about to find none.
void Member::spill(Operation *op) noexcept {
  constexpr uint64_t kMost = 64 << 20;
  if (!op->place.own || !small(op) || 2 * pool_.used(Share::SmallSend) < pool_.of(Share::SmallSend)) return;
  const uint64_t bytes = op->call.bytes;
  PeerRank &p = peers_[op->call.root];
  if (p.send_credit.has_for_message(bytes)) return;
  auto &spilled = context_->staging().spilled();
  if (spilled.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kMost) {
    op->spilled.reset(new (std::nothrow) std::byte[bytes]);
    if (op->spilled) {
      copy_bytes(op->spilled.get(), context_->arena().base() + op->place.piece.offset, bytes);
      return unstage(op);
    }
  }
  spilled.fetch_sub(bytes, std::memory_order_relaxed);
}

bool Member::give_place(Operation *op, const p2p::Piece &piece) noexcept {
  op->place.piece = piece;
  return op->place.own = true;
}

bool Member::stage(Operation *op, Share share) noexcept {
  const auto piece = pool_.take(op->call.bytes, share);
  return piece && give_place(op, *piece);
}

// Where a device that did not come to it may still copy there, the place is nobody's any more.
void Member::unstage(Operation *op) noexcept {
  op->place.own = false;
  const bool send = op->call.collective == Collective::Send;
  const bool copying =
      stages_lost_.load(std::memory_order_relaxed) ||
      (op->ticket.load(std::memory_order_relaxed) != 0 && copier_ && !(send ? copier_->taken(*op) : copier_->landed(*op)));
  if (copying) pool_.lose(op->place.piece);
  else pool_.give(op->place.piece);
}

// ---- submission ----------------------------------------------------------------------------------------------------------------------

// All ranks cut alike, so that it does not matter whose memory is whose.
void Member::submit_parts(Operation *op) noexcept {
  const uint64_t whole = op->call.bytes, size = part_of(*op);
  const auto parts = static_cast<uint32_t>((whole + size - 1) / size);
  op->in_parts = true;
  op->children.store(parts + 1, std::memory_order_relaxed);
  auto whole_message = in_order(*op);
  for (uint32_t i = 0; i < parts; ++i) {
    Operation *part = OperationPool::instance().take();  // its one reference is the engine's
    part->call = op->call;
    part->call.bytes = std::min(size, whole - i * size);
    if (op->call.in) part->call.in += i * size;
    if (op->call.out) part->call.out += i * size;
    part->label = op->label;
    part->whole = whole;
    part->part = i;
    part->parent = op;
    part->member = this;
    part->keep = shared_from_this();
    if (op->call.order_later) {
      OperationPool::retain(part);
      op->parts.push_back(part);
    }
    part->submitted_ns = op->submitted_ns;
    part->deadline_ns = op->deadline_ns;
    part->grouped = op->grouped;
    part->slot.promised = op->slot.promised && takes_slot(part);
    if (i < op->pieces.size()) give_place(part, op->pieces[i]);
    OperationPool::retain(part);  // this thread may come out of the runtime after it is over
    pending_.fetch_add(1, std::memory_order_acq_rel);
    if (failed()) {
      end_op(part, failure().code, about(*part));
    } else {
      submit_message(part);
    }
    OperationPool::instance().release(part);
  }
  op->pieces.clear();
  if (whole_message) whole_message.unlock();
  if (op->children.fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_operation(op, op->result, std::string(op->text), now_ns());
}

// The parts of one message come one after the other, also where several threads call, and so do the messages that are numbered with them. Who
// cannot wait does not wait here either: another thread may stand in the runtime until this one has gone on. Then the two messages are in
// no order, and if they are for the same rank, and one is of several parts, their receives say so.
std::unique_lock<std::recursive_timed_mutex> Member::in_order(const Operation &op) noexcept {
  std::recursive_timed_mutex &mutex = order_[op.call.collective == Collective::Send ? 0 : 1];
  std::unique_lock numbered(mutex, std::try_to_lock);
  if (!can_wait_here()) return numbered;
  // Whoever has it may be stuck in the runtime. After a failure there is no order any more. (Of the clocks ThreadSanitizer knows this one.)
  while (!numbered && !failed() && now_ns() < op.deadline_ns)
    (void)numbered.try_lock_until(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  return numbered;
}

void Member::submit_message(Operation *op) noexcept {
  const bool send = op->call.collective == Collective::Send;
  std::unique_lock<std::recursive_timed_mutex> numbered;
  if (takes_slot(op)) numbered = in_order(*op);
  if (op->call.device && op->call.bytes != 0) {
    island_polls_.store(true, std::memory_order_relaxed);
    // This thread may be held up in the runtime, and the deadline is to be seen all the same.
    context_->progress().activate(*this);
    return send ? send_from_device(op) : recv_to_device(op);
  }
  if (send) start_send(op, true);
  else start_recv(op);
}

// The thread that is inside a link, or in a callback of an operation that it has ended, is what the message would need to go on.
bool Member::can_wait_here() noexcept { return !Links::inside_link() && driven_by_this_thread() == nullptr; }

// Where another thread takes meanwhile what make_ready() has found.
bool Member::may_wait_here(Operation *op) noexcept {
  if (can_wait_here()) return true;
  fail(Code::Unsupported,
       describe(*op) +
           ": a message of device memory on a stream cannot be begun in a callback where it has to wait; give no stream",
       true);
  return false;
}

// For each of its parts, or it is as it was.
template <class Take>
bool Member::take_places(Operation &op, Take take) {
  const uint64_t whole = op.call.bytes, size = part_bytes_ != 0 && whole > part_bytes_ ? part_of(op) : whole;
  for (uint64_t at = 0; at < whole; at += size) {
    const std::optional<p2p::Piece> free = take(std::min(size, whole - at));
    if (!free) {
      give_back(op);
      return false;
    }
    op.pieces.push_back(*free);
  }
  return true;
}

void Member::give_back(Operation &op) noexcept {
  for (const p2p::Piece &piece : op.pieces) pool_.give(piece);
  op.pieces.clear();
}

// In a callback a message on a stream has its pinned memory before it begins, all of it.
const char *Member::ready_message(Operation &op) {
  if (!op.call.device || !op.call.on_stream || op.call.order_later || op.call.bytes == 0) return nullptr;
  constexpr const char *kNoPlace = "no pinned memory is free for it now (a larger ISTHMUS_STAGING_BYTES has more)";
  if (op.call.collective == Collective::Send) {
    const Share share = small(&op) ? Share::SmallSend : Share::Send;
    return take_places(op, [&](uint64_t bytes) { return pool_.take(bytes, share); }) ? nullptr : kNoPlace;
  }
  if (!copier_gates_) return kNoGates;
  if (context_->staging().unplaced_sends().load(std::memory_order_acquire) != 0) {
    op.deadline_ns = now_ns() + seconds_to_ns(op.call.timeout);
    place_sends(&op);
    if (!failed() && context_->staging().unplaced_sends().load(std::memory_order_acquire) != 0)
      return "sends that were called before it still wait for pinned memory";
  }
  return take_places(op, [&](uint64_t bytes) { return take_ahead(bytes, small(&op)); }) ? nullptr : kNoPlace;
}

void Member::hold(Operation *op, void *stream) noexcept {
  if (!op->inline_op) OperationPool::retain(op);
  held_here.push_back({op, stream});
  context_->progress().activate(*this);
}

void Member::send_from_device(Operation *op) noexcept {
  op->port = Port::Taken;
  const SubmitLock::Held submitting = lock_for(copier_lock_, op);
  if (!submitting) return end_failed(op);
  bool behind = false;
  {
    const Lock lock(match_lock_);
    number_send(op);
    taking_.append(op);
    moving_.fetch_add(1, std::memory_order_release);
    behind = short_[small(op)] != 0;
  }
  if (failed() || !copier_) return;  // drive() ends it
  try {
    const bool patient = !op->call.on_stream || can_wait_here();
    if (op->place.own && into_slot(op)) unstage(op);
    if (op->place.own || op->send_slot ||
        (!behind && (into_slot(op) || (!(patient && waits_for_slot(op)) && stage_send(op)))))
      return copier_->take(*op);
    if (op->call.on_stream) copier_->mark(*op);
  } catch (const Error &e) { return not_submitted(*op, e); }
  if (op->call.on_stream && !may_wait_here(op)) return;
  {
    const Lock lock(match_lock_);
    place_later(op);
    if (!waits_for_slot(op)) run_short(op);
  }
  if (op->slot.number != 0) slot_waiters_.fetch_add(1, std::memory_order_relaxed);
  if (op->call.on_stream) hold(op, nullptr);
  worker_wanted_.store(true, std::memory_order_release);
  context_->progress().activate(*this);  // and what this thread waits for may be another member's, which waits for this one
  context_->wake();
}

void Member::recv_to_device(Operation *op) noexcept {
  const SubmitLock::Held submitting = lock_for(copier_lock_, op);
  if (!submitting) return end_failed(op);
  if (failed() || !copier_) return (void)start_recv(op);  // drive() ends it
  struct Keep {  // once it has begun, it may be over before its submission has ended
    Operation *op = nullptr;
    ~Keep() {
      if (op) OperationPool::instance().release(op);
    }
  } keep;
  bool begun = false;
  try {
    if (op->call.order_later) {
      if (!op->begun) copier_->mark(*op);
      op->call.on_stream = false;
    }
    if (op->call.on_stream && copier_->gates() && stage_all(op)) {
      copier_->make_gate();
      if (!op->inline_op) {
        OperationPool::retain(op);
        keep.op = op;
      }
      // First: what the device does before it comes to the copy may be what this thread waits for in a call of the runtime.
      op->port = Port::Expected;
      begun = (takes_slot(op) && !op->place.own && start_recv(op)) || ((op->place.own || stage_ahead(op)) && start_recv(op));
      if (begun) return copier_->expect(*op);
    }
    op->port = op->call.on_stream ? Port::Caller : Port::Worker;
    op->place.inherits = false;
    // Else its message waits for a place when it has come.
    if (small(op) && !takes_slot(op) && !op->place.own) stage(op, Share::SmallAhead);
  } catch (const Error &e) {
    if (begun) return not_submitted(*op, e);
    not_submitted(*op, e);
  }
  if (op->port == Port::Caller && may_wait_here(op)) hold(op, op->call.stream);
  start_recv(op);
}

void Member::put_behind_gates(Operation *op) noexcept {
  op->port_next = nullptr;
  *gated_tail_ = op;
  gated_tail_ = &op->port_next;
}

void Member::order(Operation *op, void *stream) {
  bool ordered = true;
  if (op->parts.empty()) ordered = order_part(op, stream);
  for (Operation *part : op->parts) ordered &= order_part(part, stream);
  settle_streams();
  if (!ordered)
    isthmus::fail(
        Code::Unsupported,
        "{}: a stream cannot be ordered behind it in a callback, because the message has not come and {}; do it on "
        "another thread, or once the receive is over",
        describe(*op), copier_gates_ ? "no pinned memory is free for it" : kNoGates);
}

bool Member::order_part(Operation *op, void *stream) noexcept {
  const SubmitLock::Held submitting = lock_for(copier_lock_, op);
  if (!submitting || op->over() || failed() || !copier_) return true;
  try {
    const bool may_wait = can_wait_here();
    if (order_now(op, stream, may_wait)) return true;
    if (may_wait) hold(op, stream);
    return may_wait;
  } catch (const Error &e) { not_submitted(*op, e); }
  return true;
}

// Behind a gate, as if it had been submitted so, where that can still be, or with its message. False: it cannot, and that has not come.
bool Member::order_now(Operation *op, void *stream, bool may_wait) {
  if (op->ticket.load(std::memory_order_relaxed) != 0) return copier_->order(*op, stream), true;
  const bool gate = !op->arrived.load(std::memory_order_acquire) && copier_->gates() && stage_all(op) && stage_posted(op);
  if (gate) copier_->make_gate();
  bool arrived, expected;
  {
    const Lock lock(match_lock_);
    arrived = op->arrived.load(std::memory_order_relaxed);
    expected = gate && !arrived;
    if (!expected && !arrived && !may_wait) return false;  // it stays the device worker's
    op->port = expected ? Port::Expected : Port::Caller;
    if (!expected && !arrived) return false;
    if (expected) {
      copier_->reserve(*op);
      put_behind_gates(op);
      lend(op);
    } else {
      slot_submitted(op);
    }
    op->call.on_stream = true;
    op->call.stream = stream;
  }
  if (expected) copier_->expect(*op);
  else copier_->put(*op);
  return true;
}

// Whether a receive has pinned memory, or gets some: not where its message has been announced, for then the engine is about to see to it.
bool Member::stage_posted(Operation *op) noexcept {
  {
    const Lock lock(match_lock_);
    const bool placed = op->place.own_or_will() || op->slot.in_slot;
    if (placed || !posted_.has(op)) return placed;
    if (recv_slots_.take_slot(op->slot, op->call.root)) {
      read_slot(op, op->call.root, op->slot.expected);
      return true;
    }
  }
  const std::optional<p2p::Piece> free = take_ahead(op->call.bytes, small(op));
  {
    const Lock lock(match_lock_);
    if (!op->place.own && posted_.has(op) &&
        (free ? give_place(op, *free) : small(op) && chain_.inherit(op->place, op->call.bytes))) {
      stand_apart(op);
      return true;
    }
  }
  if (free) pool_.give(*free);
  return false;
}

// No gate may stand before the copy of a send. Those that wait for a slot go another way then; but those of a group, whose receive waits for
// them inside the call.
bool Member::stage_all(const Operation *behind) {
  if (behind->grouped && can_wait_here()) return context_->staging().unplaced_sends().load(std::memory_order_acquire) == 0;
  for (;;) {
    Operation *op = nullptr;
    {
      const Lock lock(match_lock_);
      if (unstaged_ == 0) return true;
      op = taking_.head;
      while (op && (op->port != Port::Taken || op->ticket.load(std::memory_order_relaxed) != 0)) op = op->match_next;
    }
    if (!op || !take_waiting(op)) return false;
  }
}

// As far as there is pinned memory: who waited for it here might wait for a peer that is to come to the collective first.
void Member::place_sends(const Operation *before) noexcept {
  const SubmitLock::Held submitting = lock_for(copier_lock_, before);
  if (!submitting || failed() || !copier_) return;
  try {
    stage_all(before);
  } catch (const Error &e) { not_submitted(*before, e); }
}

// A send that was left for later. False: no pinned memory is free for it.
bool Member::take_waiting(Operation *op) {
  if (!op->place.own && !into_slot(op) && !stage_send(op)) {
    const Lock lock(match_lock_);
    run_short(op);
    return false;
  }
  // Who sees that no send waits any more submits gates, which must not come before this copy.
  struct Count {
    Context *context = nullptr;
    ~Count() {
      if (!context) return;
      context->staging().unplaced_sends().fetch_sub(1, std::memory_order_release);
      context->wake();
    }
  } count;
  {
    const Lock lock(match_lock_);
    if (placed(op)) count.context = context_.get();
  }
  if (op->slot.number != 0) slot_waiters_.fetch_sub(1, std::memory_order_relaxed);
  copier_->take(*op);  // and it may be over
  return true;
}

void Member::place_later(Operation *op) noexcept {
  op->unplaced = true;
  ++unstaged_;
  context_->staging().unplaced_sends().fetch_add(1, std::memory_order_release);
}

bool Member::placed(Operation *op) noexcept {
  if (!std::exchange(op->unplaced, false)) return false;
  --unstaged_;
  if (std::exchange(op->short_of_memory, false)) --short_[small(op)];
  return true;
}

// After a failure: those of other members wait for these no more.
void Member::forget_unplaced() noexcept {
  const Lock lock(match_lock_);
  for (Operation *o = taking_.head; o; o = o->match_next)
    if (placed(o)) context_->staging().unplaced_sends().fetch_sub(1, std::memory_order_release);
}

// Those behind it wait as well, so that it gets what becomes free.
void Member::run_short(Operation *op) noexcept {
  if (!std::exchange(op->short_of_memory, true)) ++short_[small(op)];
}

// In any order: a send may wait for the pinned memory that a receive of the same group gives back.
void Member::settle_streams() noexcept {
  while (!held_here.empty()) {
    std::vector<Held> held = std::exchange(held_here, {});
    while (!held.empty()) {
      const auto over = std::remove_if(held.begin(), held.end(), [](const Held &h) {
        if (!h.op->member->settle_stream(h.op, h.stream)) return false;
        if (!h.op->inline_op) OperationPool::instance().release(h.op);
        return true;
      });
      if (over == held.end())
        held.front().op->member->sleep_until([&] {
          return std::any_of(held.begin(), held.end(), [](const Held &h) { return h.op->member->may_settle(*h.op); });
        });
      else held.erase(over, held.end());
    }
  }
}

bool Member::may_settle(const Operation &op) const noexcept {
  if (failed() || op.over()) return true;
  if (op.call.collective == Collective::Send) return op.ticket.load(std::memory_order_acquire) != 0;
  return op.arrived.load(std::memory_order_acquire) ||
         (copier_gates_ && op.grouped && !op.ungated &&
          context_->staging().unplaced_sends().load(std::memory_order_acquire) == 0);
}

bool Member::settle_stream(Operation *op, void *stream) noexcept {
  if (!may_settle(*op)) return false;
  if (op->call.collective == Collective::Send) return true;
  const SubmitLock::Held submitting = lock_for(copier_lock_, op);
  if (!submitting || failed() || !copier_ || op->over()) return true;
  try {
    const bool all_placed = context_->staging().unplaced_sends().load(std::memory_order_acquire) == 0;
    if (!order_now(op, stream, true)) return op->ungated = all_placed, false;
  } catch (const Error &e) { not_submitted(*op, e); }
  return true;
}

// ---- progress ------------------------------------------------------------------------------------------------------------------------

// Its device work waits for this thread or another one; see drive_messages().
void Member::come(Operation *op) noexcept {
  landing_.append(op);
  moving_.fetch_add(1, std::memory_order_release);
  op->arrived.store(true, std::memory_order_release);
  if (op->port == Port::Worker) worker_wanted_.store(true, std::memory_order_release);
  context_->wake();
}

bool Member::drive_messages() noexcept {
  bool moved = false;
  if (slot_waiters_.load(std::memory_order_relaxed) != 0 && !worker_called_.load(std::memory_order_relaxed) &&
      room_for_a_waiter())
    worker_wanted_.store(true, std::memory_order_release);
  while (!failed() && (start_next_send() || grant_next() || end_next_landed())) moved = true;
  open_gates();
  if (worker_wanted_.exchange(false, std::memory_order_acq_rel)) {
    worker_called_.store(true, std::memory_order_relaxed);
    context_->workers().call(*this);
  }
  return moved;
}

// The first send whose bytes are out, and that no other to the same rank with the same tag stands before.
bool Member::start_next_send() noexcept {
  constexpr size_t kKeys = 32;
  struct {
    int rank, tag;
  } before[kKeys];
  size_t keys = 0;
  Operation *op = nullptr;
  {
    const Lock lock(match_lock_);
    for (Operation *o = taking_.head; o && keys < kKeys; o = o->match_next) {
      const bool second = std::any_of(before, before + keys,
                                      [o](const auto &key) { return key.rank == o->call.root && key.tag == o->call.tag; });
      if (second) continue;
      if (!on_stage(o) || copier_->taken(*o)) {
        op = o;
        break;
      }
      before[keys++] = {o->call.root, o->call.tag};
    }
    if (!op) return false;
    taking_.take(op);
    starting_ = {true, op->call.root, op->call.tag};
    moving_.fetch_sub(1, std::memory_order_release);
  }
  spill(op);
  start_send(op, false);
  const Lock lock(match_lock_);
  starting_ = {};
  return true;
}

bool Member::behind_another(const Operation *op) const noexcept {
  if (starting_.any && starting_.rank == op->call.root && starting_.tag == op->call.tag) return true;
  for (const Operation *o = taking_.head; o; o = o->match_next)
    if (o->call.root == op->call.root && o->call.tag == op->call.tag) return true;
  return false;
}

bool Member::grant_next() noexcept {
  Operation *op = nullptr;
  bool place = false;  // who orders it on a stream may change its port meanwhile, so it is asked for under the lock
  const auto needs_place = [](const Operation *o) {
    return o->lies < 0 && on_stage(o) && !o->place.own && !o->slot.in_slot;
  };
  {
    const Lock lock(match_lock_);
    Operation *first = nullptr;  // that needs pinned memory; who needs none does not wait for it
    for (Operation *o = granting_.head; o && !op; o = o->match_next) {
      if (o->place.inherits) continue;  // it waits for one before it
      if (needs_place(o)) first = first ? first : o;
      else if (o->lies >= 0 || may_come(o)) op = o;
    }
    if (!op) op = first;
    place = op && needs_place(op);
  }
  if (!op) return false;
  if (op->lies >= 0) return bring(op), true;
  const std::optional<p2p::Piece> free = place ? pool_.take(op->call.bytes, Share::Announced) : std::nullopt;
  if (place && !free) return false;
  const Lock lock(match_lock_);  // exec: nobody else has taken it out
  if (op->slot.in_slot) touch_slots();
  granting_.take(op);
  moving_.fetch_sub(1, std::memory_order_release);
  if (place) give_place(op, *free);
  if (std::exchange(op->held, false)) {
    take_aside(op, *unexpected_.claimed_by(op));
    return come(op), true;
  }
  receiving_.append(op);
  clear_to_send(op, op->source, op->message_id);
  return true;
}

// A gate opens what stands before it too, so each waits for those before it.
void Member::open_gates() noexcept {
  const Lock lock(match_lock_);
  while (gated_head_ && gated_head_->arrived.load(std::memory_order_relaxed) &&
         gated_head_->ticket.load(std::memory_order_acquire) != 0) {
    copier_->open(*gated_head_);
    gated_head_ = gated_head_->port_next;
    if (!gated_head_) gated_tail_ = &gated_head_;
  }
}

bool Member::end_next_landed() noexcept {
  Operation *op;
  {
    const Lock lock(match_lock_);
    op = landing_.take_first([this](const Operation *o) { return copier_->landed(*o); });
    if (!op) return false;
    hand_on(op);
    moving_.fetch_sub(1, std::memory_order_release);
  }
  end_op(op, Code::Ok, {});
  return true;
}

bool Member::carry_messages() noexcept {
  worker_called_.store(false, std::memory_order_relaxed);
  bool memory[2] = {true, true};  // may be there for a send that finds no slot, a large one or a small one
  for (;;) {
    const SubmitLock::Held submitting = lock_for(copier_lock_, nullptr);
    if (!submitting || failed() || !copier_) return false;
    Operation *op = nullptr;
    bool later = false;
    {
      const Lock lock(match_lock_);
      for (Operation *o = landing_.head; o && !op; o = o->match_next)
        if (o->port == Port::Worker && o->ticket.load(std::memory_order_relaxed) == 0) op = o;
      for (Operation *o = taking_.head; o && !op; o = o->match_next) {
        if (o->port != Port::Taken || o->ticket.load(std::memory_order_relaxed) != 0) continue;
        if (!o->place.own && !slot_free(o) && (!memory[small(o)] || waits_for_slot(o))) later = true;
        else op = o;
      }
    }
    if (!op) return later;
    try {
      if (op->port == Port::Worker) {
        {
          const Lock lock(match_lock_);
          slot_submitted(op);
        }
        copier_->put(*op);
        continue;
      }
      if (!take_waiting(op)) memory[small(op)] = false;
    } catch (const Error &e) {
      not_submitted(*op, e);
      return false;
    }
  }
}

bool Member::messages_settled() noexcept {
  if (!copier_) return true;
  copier_->abort();
  if (const SubmitLock::Held submitting = copier_lock_.try_take()) return !copier_ || copier_->settled(now_ns());
  if (!leave_behind(copier_lock_)) return false;
  stages_lost_.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace isthmus::engine
