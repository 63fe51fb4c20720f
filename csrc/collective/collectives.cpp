#include "collective/collectives.hpp"

#include <utility>

#include "engine/operation_text.hpp"

namespace isthmus::collective {

Collectives::Collectives(RankCore &core, CollectivesSetup s, DeviceHealth &health)
    : core_(core),
      streaming_(core.context->stores()),
      descriptions_(core, queue_),
      memory_(core, s.fixed_ring, s.fixed_ring_bytes,
              [this](uint64_t sequence) { return std::as_const(descriptions_).ended_by_all(sequence); }),
      device_(core, std::move(s.executor), std::move(s.library_ranks), health),
      one_hop_(core, descriptions_, device_, streaming_),
      host_(core, descriptions_, memory_, device_, streaming_, s.credit_window) {}

// ---- submission ----------------------------------------------------------------------------------------------------------------------

// A caller that hears of a failure may free memory, and the free waits for all that the device has to do. So the operation does not end before
// the work that stands on the device is stopped.
void Collectives::submit_failed(Operation *op) noexcept {
  if (device_.executor() && core_.pending.load(std::memory_order_acquire) > 1) return queue_.append(op);
  op->sequence = queue_.sequence() + 1;  // the number that the operation would have had
  core_.end(op, core_.failure().code, core_.about(*op));
}

// The wait needs no thread of the caller's: operations that have the room give the room back without one.
void Collectives::take_room(Operation &op) {
  while (!memory_.take(
      op, queue_.sequence() + 1)) {  // nobody else appends: operations get their numbers under the collective lock
    if (now_ns() >= op.time.deadline_ns || core_.failed())
      fail(Code::Resource, "no staging memory is free for it, which other operations have (ISTHMUS_STAGING_BYTES)");
    if (memory_.wants_reserve(op)) {
      memory_.open_reserve(op, *device_.executor());
      continue;
    }
    core_.sleep_until([&] {
      return core_.context->staging().given_back() != op.run.room.given_back || now_ns() >= op.run.room.ask_again_ns;
    });
  }
}

// The operation is in the queue before its device work is submitted. The submission may wait for room on the stream. The progress thread makes
// that room, by driving this and earlier operations.
void Collectives::submit_to_device(Operation *op) noexcept {
  const SubmitLock::Held order = core_.lock_for(core_.collective_lock, op);
  if (!order) {
    op->sequence = queue_.sequence() + 1;
    return core_.end(op, core_.failure().code, core_.about(*op));
  }
  const std::shared_ptr<const plan::Plan> plan = op->plan;
  if (core_.failed() || !device_.executor()) return queue_.append(op);  // the driver ends `op`; the device side may be gone
  if (!plan || plan->device.empty()) {
    queue_.append(op);
    return device_.nothing_for_device();
  }
  try {
    take_room(*op);
    if (core_.device) {
      if (!op->call.device) device_.bounce_input(*op);
      else if (op->call.input_there || op->call.output_there) device_.executor()->lend_for_pinned(*op);
      core_.uses_device.store(true, std::memory_order_relaxed);
    }
    queue_.append(op);
    begin_if_first(op);
    core_.activate();
    device_.submit(*op);
  } catch (const Error &e) {
    const uint64_t begun = op->sequence;
    op->run.broken.store(true, std::memory_order_release);
    if (begun == 0) queue_.append(op);
    core_.not_submitted(*op, e);  // before finish() signals the end: the operation has not come to its end
    if (begun != 0) device_.executor()->finish(begun);
  }
}

// Where the host can begin at once, the stream need not wait at the gate for the host.
void Collectives::begin_if_first(Operation *op) noexcept {
  if (!core_.exec.try_take()) return;
  if (queue_.first() == op && !core_.failed()) {
    entered_.store(op->sequence, std::memory_order_release);
    by_cells(*op) ? one_hop_.begin(*op) : host_.begin(*op);
  }
  core_.exec.give();
}

// ---- progress ------------------------------------------------------------------------------------------------------------------------

Outcome Collectives::run(Operation &op) noexcept {
  if (entered_.load(std::memory_order_relaxed) != op.sequence) entered_.store(op.sequence, std::memory_order_release);
  return by_cells(op) ? one_hop_.run(op) : host_.run(op);
}

Outcome Collectives::advance() noexcept {
  Operation *const op = queue_.first();
  if (!op) return Outcome::Blocked;
  const Outcome outcome = run(*op);
  if (outcome == Outcome::Ended) {  // an operation that has ended is not looked at again
    end_first(op);
    return Outcome::Ended;
  }
  if (!by_cells(*op) && !core_.failed()) host_.go_ahead(*op, queue_);
  if (core_.failed()) return Outcome::Moved;
  // A wrong frame for the next operation is told when this one, on which all agree, has ended.
  if (const int q = host_.inbox().wrong(op->sequence); q >= 0) {
    descriptions_.mismatch(op->sequence, q);
    return Outcome::Moved;
  }
  waiting_on_.store(op->run.blocked_on, std::memory_order_relaxed);
  turn_.store(op->run.at.turn(), std::memory_order_relaxed);
  return Outcome::Blocked;
}

void Collectives::end_first(Operation *op) noexcept {
  queue_.take_first();
  descriptions_.ended(*op, by_cells(*op) && one_hop_.heard_all(*op));
  done_.store(op->sequence, std::memory_order_release);
  core_.mail->done.value.store(op->sequence, std::memory_order_release);
  waiting_on_.store(-1, std::memory_order_relaxed);
  // The operation may have ended before this rank has heard from all ranks. Then a rank may wait for just this end.
  if (descriptions_.unchecked()) core_.ring_peers();
  core_.end(op, Code::Ok, {});
}

bool Collectives::end_what_memory_completes() noexcept {
  for (bool moved = false;; moved = true) {
    Operation *const op = queue_.first();
    if (!op || (op->plan && op->plan->uses_links) || run(*op) != Outcome::Ended) return moved;
    end_first(op);
  }
}

void Collectives::end_all(Code code) noexcept {
  while (Operation *op = queue_.take_first()) core_.end(op, code, core_.about(*op));
  host_.inbox().forget();
}

void Collectives::release(Operation &op, Code result) noexcept {
  if (op.run.bounce) device_.bounce_output(op, result == Code::Ok);
  if (device_.executor()) device_.executor()->is_over(op, result == Code::Ok);
  memory_.give(op);
  if (std::exchange(op.run.waits_for_ranks, false)) engine::leave_waits(core_);
}

Collectives::Late Collectives::late(int64_t now) noexcept {
  const Operation *const op = queue_.first();
  if (!op) return {};
  const int q = op->run.blocked_on;
  if (q >= 0 && (op->run.phase == Phase::Posted || op->run.phase == Phase::Comparing || op->run.phase == Phase::Running)) {
    if (!descriptions_.check(*op, q)) return {};
  }
  Late found{op, nullptr};
  queue_.each([&](const Operation &o) {
    if (now >= o.time.deadline_ns) found.late = &o;
    return !found.late;
  });
  return found;
}

uint64_t Collectives::progress() const noexcept {
  const Operation *const op = queue_.first();
  return (op ? op->sequence + op->run.at.turn() : 0) + (device_.executor() ? device_.executor()->signals().sum() : 0);
}

// ---- for people ----------------------------------------------------------------------------------------------------------------------

std::string Collectives::waiting_text() const {
  const int q = waiting_on();
  const uint64_t entered = this->entered();
  if (q < 0 || entered <= done()) return {};
  const Descriptions::Called own = descriptions_.called(entered);
  if (!own.known) return {};  // the operation ended during this look
  return formatted("#{} {} of '{}', waiting for {}", entered, describe(core_.id, own.code, own.bytes), core_.id.name,
                   core_.id.text(q));
}

void Collectives::answer(Answer &a, uint64_t sequence) const noexcept {
  a.entered = entered();
  a.done = done();
  a.waiting_on = waiting_on();
  a.turn = turn_.load(std::memory_order_relaxed);
  // Of an operation whose host list goes ahead of its turn a peer may have frames.
  const bool begun = sequence <= a.entered || descriptions_.published(sequence);
  if (const Descriptions::Called own = descriptions_.called(sequence); own.known && begun) {
    a.known = 1;
    a.digest = own.digest;
    a.what = own.code;
    a.bytes = own.bytes;
  } else if (a.entered > 0) {
    const Descriptions::Called last = descriptions_.called(a.entered);
    a.what = last.code;
    a.bytes = last.bytes;
  }
  if (a.entered <= a.done) a.waiting_on = -1;  // not inside a collective
}

}  // namespace isthmus::collective
