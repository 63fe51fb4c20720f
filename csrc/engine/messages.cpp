#include "engine/messages.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/log.hpp"

namespace isthmus::engine {

Messages::Messages(RankCore &core, std::unique_ptr<DeviceCopier> copier, uint64_t part_bytes, int64_t group_wait_ns)
    : core_(core),
      table_(core),
      places_(core, table_, device_),
      slots_(core, table_, part_bytes, group_wait_ns),
      matcher_(core, table_, places_, slots_, device_),
      copies_(core, table_, places_, slots_, device_),
      streams_(core, table_, places_, slots_, copies_, device_) {
  device_.copier = std::move(copier);
  if (device_.copier) device_.gates = device_.copier->gates();
}

// ---- submission ----------------------------------------------------------------------------------------------------------------------

void Messages::submit(Operation *op) noexcept {
  if (slots_.part_bytes() != 0 && op->call.bytes > slots_.part_bytes()) return submit_parts(op);
  core_.pending.fetch_add(1, std::memory_order_acq_rel);
  if (core_.failed()) core_.end(op, core_.failure().code, core_.about(*op));
  else submit_one(op);
}

Operation *Messages::make_part(Operation *op, uint32_t i, uint64_t size) noexcept {
  Operation *const part = OperationPool::instance().take();  // its one reference is the engine's
  const uint64_t whole = op->call.bytes;
  part->call = op->call;
  part->call.bytes = std::min(size, whole - i * size);
  if (op->call.in) part->call.in += i * size;
  if (op->call.out) part->call.out += i * size;
  part->label = op->label;
  part->whole = whole;
  part->part = i;
  part->parent = op;
  part->rank = op->rank;
  part->core = &core_;
  part->keep = core_.port.itself().lock();
  if (op->call.order_later) {
    OperationPool::retain(part);
    op->parts.push_back(part);
  }
  part->submitted_ns = op->submitted_ns;
  part->deadline_ns = op->deadline_ns;
  part->grouped = op->grouped;
  part->slot.promised = op->slot.promised && slots_.takes(part);
  return part;
}

// All ranks cut alike, so that it does not matter whose memory is whose.
void Messages::submit_parts(Operation *op) noexcept {
  const uint64_t size = slots_.part_of(op->call.dtype);
  const auto parts = static_cast<uint32_t>((op->call.bytes + size - 1) / size);
  op->in_parts = true;
  op->children.store(parts + 1, std::memory_order_relaxed);
  auto whole_message = in_order(*op);
  for (uint32_t i = 0; i < parts; ++i) {
    Operation *const part = make_part(op, i, size);
    OperationPool::retain(part);  // this thread may come out of the runtime after it is over
    core_.pending.fetch_add(1, std::memory_order_acq_rel);
    if (core_.failed()) core_.end(part, core_.failure().code, core_.about(*part));
    else submit_one(part);
    OperationPool::instance().release(part);
  }
  if (whole_message) whole_message.unlock();
  if (op->children.fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_operation(op, op->result, std::string(op->text), now_ns());
}

// The parts of one message come one after the other, also where several threads call, and so do the messages that are numbered with them.
Messages::Numbered Messages::in_order(const Operation &op) noexcept {
  std::recursive_timed_mutex &mutex = order_[op.call.collective == Collective::Send ? 0 : 1];
  Numbered numbered(mutex, std::try_to_lock);
  // Whoever has it may be stuck in the runtime. After a failure there is no order any more. (Of the clocks ThreadSanitizer knows this one.)
  while (!numbered && !core_.failed() && now_ns() < op.deadline_ns) {
    core_.context->progress().stand_in();
    (void)numbered.try_lock_until(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  }
  return numbered;
}

void Messages::submit_one(Operation *op) noexcept {
  const bool send = op->call.collective == Collective::Send;
  Numbered numbered;
  if (slots_.takes(op)) numbered = in_order(*op);
  if (op->call.device && op->call.bytes != 0) {
    core_.uses_device.store(true, std::memory_order_relaxed);
    // This thread may be held up in the runtime, and the deadline is to be seen all the same.
    core_.activate();
    return send ? send_from_device(op) : recv_to_device(op);
  }
  if (send) matcher_.start_send(op, true);
  else matcher_.start_recv(op);
}

void Messages::send_from_device(Operation *op) noexcept {
  op->port = Port::Taken;
  const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, op);
  if (!submitting) return core_.end(op, core_.failure().code, core_.about(*op));
  bool behind = false;
  {
    const auto s = table_.lock();
    slots_.number_send(*s, op);
    table_.begin_moving(s->taking, op);
    behind = s->starved[is_small(op)] != 0;
  }
  if (core_.failed() || !device_.copier) return;  // drive() ends it
  try {
    if (!behind && (slots_.put_in_slot(op) || (!slots_.worth_waiting(op) && places_.stage_send(op))))
      return device_.copier->take(*op);
    if (op->call.on_stream) device_.copier->mark(*op);
  } catch (const Error &e) { return core_.not_submitted(*op, e); }
  copies_.wait(op);
  if (op->call.on_stream) streams_.hold(op, nullptr);
  core_.activate();  // and what this thread waits for may be another communicator's, which waits for this one
  core_.wake();
}

// The receive begins before its copy is submitted: what the device does before it comes to the copy may be what this thread waits for in a
// call of the runtime.
bool Messages::expect(Operation *op) noexcept {
  op->port = Port::Expected;
  if (slots_.takes(op) && matcher_.start_recv(op)) return true;
  return places_.stage_ahead(op) && matcher_.start_recv(op);
}

void Messages::recv_to_device(Operation *op) noexcept {
  const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, op);
  if (!submitting) return core_.end(op, core_.failure().code, core_.about(*op));
  if (core_.failed() || !device_.copier) return (void)matcher_.start_recv(op);  // drive() ends it
  struct Keep {  // once it has begun, it may be over before its submission has ended
    Operation *op = nullptr;
    ~Keep() {
      if (op) OperationPool::instance().release(op);
    }
  } keep;
  bool begun = false;
  try {
    if (op->call.order_later) {
      if (!op->begun) device_.copier->mark(*op);
      op->call.on_stream = false;
    }
    if (op->call.on_stream && device_.copier->gates() && copies_.submit_all(op)) {
      device_.copier->make_gate();
      if (!op->inline_op) {
        OperationPool::retain(op);
        keep.op = op;
      }
      begun = expect(op);
      if (begun) return device_.copier->expect(*op);
    }
    op->port = op->call.on_stream ? Port::Caller : Port::Worker;
    op->place.inherits = false;
    // Else its message waits for a place when it has come.
    if (is_small(op) && !slots_.takes(op) && !op->place.own) places_.stage(op, p2p::Share::SmallAhead);
  } catch (const Error &e) {
    core_.not_submitted(*op, e);
    if (begun) return;
  }
  if (op->port == Port::Caller) streams_.hold(op, op->call.stream);
  matcher_.start_recv(op);
}

// ---- progress ------------------------------------------------------------------------------------------------------------------------

uint64_t Messages::progress() const noexcept {
  return (device_.copier ? device_.copier->signalled() : 0) + table_.moving();
}

bool Messages::drive() noexcept {
  bool moved = false;
  if (table_.slot_waiters.load(std::memory_order_relaxed) != 0 && !table_.worker_is_called() && slots_.has_room_for_waiter())
    table_.want_worker();
  while (!core_.failed() && (start_next_send() || grant_next() || end_next_landed())) moved = true;
  open_gates();
  if (table_.worker_wanted()) {
    table_.worker_is_called(true);
    core_.context->workers().call(core_.port);
  }
  return moved;
}

// The first send whose bytes are out, and that no other to the same rank with the same tag stands before.
bool Messages::start_next_send() noexcept {
  constexpr size_t kKeys = 32;
  std::array<std::pair<int, int>, kKeys> before;  // ranks and tags
  size_t keys = 0;
  Operation *op = nullptr;
  {
    const auto s = table_.lock();
    for (Operation *o = s->taking.head; o && keys < kKeys; o = o->match_next) {
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
  matcher_.start_send(op, false);
  table_.lock()->starting.reset();
  return true;
}

bool Messages::grant_next() noexcept {
  Operation *op = nullptr;
  bool place = false;  // who orders it on a stream may change its port meanwhile, so it is asked for under the lock
  const auto needs_place = [](const Operation *o) {
    return o->lies < 0 && on_stage(o) && !o->place.own && !o->slot.in_slot;
  };
  {
    const auto s = table_.lock();
    Operation *first = nullptr;  // that needs pinned memory; who needs none does not wait for it
    for (Operation *o = s->granting.head; o && !op; o = o->match_next) {
      if (o->place.inherits) continue;  // it waits for one before it
      if (needs_place(o)) first = first ? first : o;
      else if (o->lies >= 0 || slots_.may_come(*s, o)) op = o;
    }
    if (!op) op = first;
    place = op && needs_place(op);
  }
  if (!op) return false;
  if (op->lies >= 0) {
    if (slots_.bring(op)) core_.end(op, Code::Ok, {});
    return true;
  }
  const std::optional<p2p::Piece> free = place ? places_.take(op->call.bytes, p2p::Share::Announced) : std::nullopt;
  if (place && !free) return false;
  matcher_.place(op, free ? &*free : nullptr);  // nobody else has taken it out
  return true;
}

// A gate opens what stands before it too, so each waits for those before it.
void Messages::open_gates() noexcept {
  const auto s = table_.lock();
  while (s->gated && s->gated->arrived.load(std::memory_order_relaxed) &&
         s->gated->ticket.load(std::memory_order_acquire) != 0) {
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
  if (op.place.own) places_.unstage(&op);
  if (op.spilled) places_.end_spill(&op);
  if (result == Code::Ok && op.slot.number != 0 && op.call.collective == Collective::Recv) slots_.has_left(&op);
  if (op.begun && device_.copier) device_.copier->forget(op);
  if (op.whole != 0 && op.part == 0 && op.source >= 0) op.parent->source = op.source;
}

bool Messages::empty() noexcept {
  const auto s = table_.lock();
  return std::all_of(s->all.begin(), s->all.end(), [](const OperationList *list) { return list->head == nullptr; });
}

uint32_t Messages::waiting_receives() noexcept {
  const auto s = table_.lock();
  uint32_t receives = 0;
  for (const Operation *o = s->posted.head; o; o = o->match_next) ++receives;
  return receives;
}

bool Messages::written_by(int q) noexcept {
  const auto s = table_.lock();
  return s->slots.any() && s->slots.has(q) && !core_.id.on_host(q);
}

void Messages::leave() noexcept {
  if (device_.copier) device_.copier->abort();
  if (const SubmitLock::Held submitting =
          core_.message_lock.take(nullptr, [this] { return core_.leave_behind(core_.message_lock); }))
    device_.copier.reset();
}

}  // namespace isthmus::engine
