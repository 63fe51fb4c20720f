#include "messages/messages.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/device_waits.hpp"

namespace isthmus::messages {

Messages::Messages(RankCore &core, std::unique_ptr<DeviceCopier> copier, uint64_t part_bytes, int64_t group_wait_ns)
    : core_(core),
      sizes_(part_bytes),
      table_(core),
      library_(core, table_, group_wait_ns),
      places_(core, table_, device_),
      sends_(core, table_, sizes_, group_wait_ns),
      slots_(core, table_, sizes_),
      matcher_(core, table_, places_, sends_, slots_, device_),
      copies_(core, table_, places_, sends_, slots_, device_),
      streams_(core, table_, places_, slots_, copies_, device_),
      submission_(core, table_, places_, sends_, matcher_, copies_, streams_, device_, sizes_) {
  device_.copier = std::move(copier);
  if (device_.copier) device_.gates = device_.copier->gates();
}

// ---- progress ------------------------------------------------------------------------------------------------------------------------

uint64_t Messages::progress() const noexcept { return (device_.copier ? device_.copier->signalled() : 0) + table_.moving(); }

bool Messages::drive() noexcept {
  bool moved = false;
  if (table_.slot_waiters.load(std::memory_order_relaxed) != 0 && !table_.worker_is_called() && sends_.has_room_for_waiter())
    table_.want_worker();
  while (!core_.failed() && (start_next_send() || grant_next() || end_next_landed() || library_.end_next())) moved = true;
  open_gates();
  if (table_.worker_wanted()) {
    table_.worker_called();
    core_.context->workers().call(core_.port, process::WorkerTask::LookAndCarry);
  }
  return moved;
}

// Starts the first send whose bytes are out, where no other send to the same rank with the same tag stands before.
bool Messages::start_next_send() noexcept {
  constexpr size_t kKeys = 32;
  std::array<std::pair<int, int>, kKeys> before;  // ranks and tags
  size_t keys = 0;
  Operation *op = nullptr;
  {
    const auto s = table_.lock();
    for (Operation *o = s->taking.head; o && keys < kKeys; o = o->message.next) {
      const std::pair<int, int> key{o->call.root, o->call.tag};
      if (std::find(before.begin(), before.begin() + keys, key) != before.begin() + keys) continue;
      if (!on_stage(o) || device_.copier->taken(*o)) {
        op = o;
        break;
      }
      before[keys++] = key;
    }
    if (!op) return false;
    s->taking.take(op);
    s->starting = {op->call.root, op->call.tag};
    table_.end_moving();
  }
  places_.spill(op);
  matcher_.start_send(op, SendTurn::Has);
  table_.lock()->starting.reset();
  return true;
}

bool Messages::grant_next() noexcept {
  Operation *op = nullptr;
  bool place =
      false;  // a thread that orders the receive on a stream may change its port meanwhile, so the question is under the lock
  const auto needs_place = [](const Operation *o) {
    return o->message.lies < 0 && on_stage(o) && !o->message.place.own && !o->message.slot.in_slot;
  };
  {
    const auto s = table_.lock();
    Operation *first = nullptr;  // that needs pinned memory; a receive that needs none does not wait for this one
    for (Operation *o = s->granting.head; o && !op; o = o->message.next) {
      if (o->message.place.inherits) continue;  // the receive waits for a receive before it
      if (needs_place(o)) first = first ? first : o;
      else if (o->message.lies >= 0 || slots_.may_come(*s, o)) op = o;
    }
    if (!op) op = first;
    place = op && needs_place(op);
  }
  if (!op) return false;
  if (op->message.lies >= 0) {
    if (slots_.bring(op)) core_.end(op, Code::Ok, {});
    return true;
  }
  const std::optional<p2p::Piece> free = place ? places_.take(op->call.bytes, p2p::Share::Announced) : std::nullopt;
  if (place && !free) return false;
  matcher_.place(op, free ? &*free : nullptr);  // no other thread has taken the receive out
  return true;
}

// Gates are opened by rising tickets, so an open gate opens all gates before it too. So each gate waits for the gates before it.
void Messages::open_gates() noexcept {
  const auto s = table_.lock();
  while (s->gated && s->gated->carry.arrived.load(std::memory_order_relaxed) &&
         s->gated->carry.ticket.load(std::memory_order_acquire) != 0) {
    device_.copier->open(*s->gated);
    s->pass_gate();
  }
}

bool Messages::end_next_landed() noexcept {
  Operation *op;
  {
    const auto s = table_.lock();
    op = s->landing.take_first([this](const Operation *o) { return device_.copier->landed(*o); });
    if (!op) return false;
    places_.hand_on(*s, op);
    table_.end_moving();
  }
  core_.end(op, Code::Ok, {});
  return true;
}

// ---- the end -------------------------------------------------------------------------------------------------------------------------

bool Messages::settled() noexcept {
  if (!device_.copier) return true;
  device_.copier->abort();
  if (const SubmitLock::Held submitting = core_.message_lock.try_take())
    return !device_.copier || device_.copier->settled(now_ns());
  if (!core_.leave_behind(core_.message_lock)) return false;
  device_.stages_lost.store(true, std::memory_order_relaxed);
  return true;
}

void Messages::release(Operation &op, Code result) noexcept {
  if (op.message.place.own) places_.unstage(&op);
  if (op.carry.spilled) places_.end_spill(&op);
  if (std::exchange(op.carry.waits_for_rank, false)) engine::leave_waits(core_);
  if (result == Code::Ok && op.message.slot.number != 0 && op.call.collective == Collective::Recv) slots_.has_left(&op);
  if (op.carry.begun && device_.copier) device_.copier->forget(op);
  if (op.cut.whole != 0 && op.cut.part == 0 && op.message.source >= 0) op.end.parent->message.source = op.message.source;
}

void Messages::leave() noexcept {
  if (device_.copier) device_.copier->abort();
  if (const SubmitLock::Held submitting =
          core_.message_lock.take(nullptr, [this] { return core_.leave_behind(core_.message_lock); }))
    device_.copier.reset();
}

}  // namespace isthmus::messages
