#include "messages/stream_order.hpp"

#include <algorithm>
#include <vector>

#include "base/fork.hpp"
#include "engine/device_waits.hpp"

namespace isthmus::messages {
namespace {

struct HeldMessage {
  StreamOrder *by;
  Operation *op;
  void *stream;  // that comes behind it
  void let_go() const noexcept {
    if (!op->life.inline_op) OperationPool::instance().release(op);
  }
};
struct HeldStream {
  HeldMessage last;  // of those that have settled
  LaneTies ties;
};
thread_local std::vector<HeldMessage> held_here;
const InChild forgets_held([](void *) noexcept { held_here.clear(); });

}  // namespace

void StreamOrder::hold(Operation *op, void *stream) noexcept {
  if (!op->life.inline_op) OperationPool::retain(op);
  held_here.push_back({this, op, stream});
  core_.activate();
}

void StreamOrder::order(Operation *op, void *stream) {
  order_all(op, stream);
  settle();
}

void StreamOrder::order_all(Operation *op, void *stream) noexcept {
  const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, op);
  if (!submitting || op->over() || core_.failed() || !device_.copier) return;
  try {
    MessageTies ties;
    ties.open(*device_.copier, *op);
    const auto order_part = [&](Operation *part) {
      if (!part->over() && !order_now(part, stream, ties)) hold(part, stream);
    };
    if (op->cut.parts.empty()) order_part(op);
    for (Operation *part : op->cut.parts) order_part(part);
    ties.close(stream);
  } catch (const Error &e) { core_.not_submitted(*op, e); }
}

// Orders a receive. Where a gate is still possible, the copy comes behind a gate, as if the receive had been submitted so. Else the copy comes with
// the message. False: no gate is possible, and the message has not come.
bool StreamOrder::order_now(Operation *op, void *stream, MessageTies &ties) {
  if (op->carry.ticket.load(std::memory_order_relaxed) != 0) return device_.copier->order(*op, ties), true;
  const bool gate = !op->carry.arrived.load(std::memory_order_acquire) && device_.copier->gates() &&
                    copies_.submit_all(op) && stage_posted(op);
  if (gate) {
    device_.copier->make_gate();
    engine::enter_waits(core_, *op);
  }
  bool expected;
  {
    const auto s = table_.lock();
    const bool arrived = op->carry.arrived.load(std::memory_order_relaxed);
    expected = gate && !arrived;
    if (!expected && !arrived) return false;
    op->carry.waits_for_rank = expected;
    op->carry.port = expected ? Port::Expected : Port::Caller;
    if (expected) {
      device_.copier->reserve(*op);
      s->put_behind_gates(op);
      places_.lend(*s, op);
    } else {
      slots_.submitted(*s, op);
    }
    op->call.on_stream = true;
    op->call.stream = stream;
  }
  if (gate && !expected) engine::leave_waits(core_);
  if (expected) device_.copier->expect(*op, &ties);
  else device_.copier->put(*op, &ties);
  return true;
}

// Whether a receive has pinned memory, or gets some. A receive whose message has been announced gets none here: the engine is about to see to the
// receive.
bool StreamOrder::stage_posted(Operation *op) noexcept {
  {
    const auto s = table_.lock();
    const bool placed = op->message.place.own_or_will() || op->message.slot.in_slot;
    if (placed || !s->posted.has(op)) return placed;
    if (slots_.claim_posted(*s, op)) return true;
  }
  const std::optional<p2p::Piece> free = places_.take_ahead(op);
  {
    const auto s = table_.lock();
    if (!op->message.place.own && s->posted.has(op)) {
      if (free) MessagePlaces::give_to(op, *free);
      if (free || (is_small(op) && s->chain.inherit(op->message.place, op->call.bytes))) {
        slots_.stand_apart(*s, op);
        return true;
      }
    }
  }
  if (free) places_.give_back(*free);
  return false;
}

// The operations settle in any order: a send may wait for the pinned memory that a receive of the same group gives back. Each stream is ordered once,
// behind all that have settled.
void StreamOrder::settle() noexcept {
  if (held_here.empty()) return;
  std::vector<HeldStream> streams;
  while (!held_here.empty()) {
    std::vector<HeldMessage> held = std::exchange(held_here, {});
    while (!held.empty()) {
      const auto over = std::remove_if(held.begin(), held.end(), [&streams](const HeldMessage &h) {
        auto its = std::find_if(streams.begin(), streams.end(),
                                [&h](const HeldStream &s) { return s.last.by == h.by && s.last.stream == h.stream; });
        LaneTies none, &ties = its == streams.end() ? none : its->ties;
        if (!h.by->settle_one(h.op, h.stream, ties)) return false;
        if (its == streams.end()) streams.push_back({h, ties});
        else std::exchange(its->last, h).let_go();
        return true;
      });
      if (over == held.end())
        held.front().by->core_.sleep_until([&] {
          return std::any_of(held.begin(), held.end(), [](const HeldMessage &h) { return h.by->may_settle(*h.op); });
        });
      else held.erase(over, held.end());
    }
  }
  for (HeldStream &s : streams) {
    s.last.by->close(*s.last.op, s.last.stream, s.ties);
    s.last.let_go();
  }
}

void StreamOrder::close(const Operation &last, void *stream, LaneTies &of) noexcept {
  const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, &last);
  if (!submitting || core_.failed() || !device_.copier) return;
  try {
    MessageTies ties(of);
    ties.open(*device_.copier, last);
    ties.close(stream);
  } catch (const Error &e) { core_.not_submitted(last, e); }
}

bool StreamOrder::may_settle(const Operation &op) const noexcept {
  if (core_.failed() || op.over()) return true;
  if (op.call.collective == Collective::Send) return op.carry.ticket.load(std::memory_order_acquire) != 0;
  return op.carry.arrived.load(std::memory_order_acquire) ||
         (device_.gates && op.message.grouped && !op.message.ungated && copies_.all_submitted());
}

bool StreamOrder::settle_one(Operation *op, void *stream, LaneTies &of) noexcept {
  if (!may_settle(*op)) return false;
  if (op->call.collective == Collective::Send) return of[Lane::Out].owes = true;
  const SubmitLock::Held submitting = core_.lock_for(core_.message_lock, op);
  if (!submitting || core_.failed() || !device_.copier || op->over()) return true;
  try {
    const bool all_placed = copies_.all_submitted();
    MessageTies ties(of);
    ties.open(*device_.copier, *op);
    if (!order_now(op, stream, ties)) return op->message.ungated = all_placed, false;
  } catch (const Error &e) { core_.not_submitted(*op, e); }
  return true;
}

}  // namespace isthmus::messages
