#include "messages/device_copier.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"

namespace isthmus::messages {

DeviceCopier::DeviceCopier(device::Runtime &runtime, int device, std::byte *arena, device::Wake wake, void *context)
    : runtime_(runtime),
      device_(device),
      arena_(arena),
      wake_(wake),
      context_(context),
      gates_(runtime.capabilities(device).gate != device::GateKind::None),
      wakes_(runtime.capabilities(device).signals_wake),
      marks_(runtime, device) {}

DeviceCopier::~DeviceCopier() {
  for (LaneState &lane : lanes_) {
    if (!lane.busy()) continue;
    // Work to which the device has not come still points to these objects.
    device::keep_for_good(lane.signal.release());
    device::keep_for_good(lane.gate.release());
    device::keep_for_good(lane.stream.release());
  }
}

LaneState &DeviceCopier::made(Lane which) {
  LaneState &lane = lanes_[which];
  if (lane.made.load(std::memory_order_relaxed)) return lane;
  lane.stream = runtime_.make_stream(device_, "isthmus messages");
  lane.signal = runtime_.make_signal(device_, wake_, context_);
  lane.before = runtime_.make_event(device_);
  lane.after = runtime_.make_event(device_);
  if (which == Lane::In) lane.gate = runtime_.make_gate(device_);
  lane.made.store(true, std::memory_order_release);
  return lane;
}

device::Stream &DeviceCopier::to_enter(const Operation &op) {
  for (const LaneState &lane : lanes_)
    if (lane.made.load(std::memory_order_relaxed)) return *lane.stream;
  return *made(op.call.collective == Collective::Send ? Lane::Out : gates_ ? Lane::In : Lane::Late).stream;
}

// ---- the user's stream ---------------------------------------------------------------------------------------------------------------

device::Stream &LaneState::users(device::Runtime &runtime, int device, void *handle) {
  if (!user || user->handle() != handle) user = runtime.adopt(device, handle);
  return *user;
}

void LaneState::order(device::Runtime &runtime, int device, void *handle) {
  after->record(*stream);
  after->hold(users(runtime, device, handle));
}

MessageTies::~MessageTies() {
  if (mark_) copier_->marks_.give_back(mark_);
}

void MessageTies::open(DeviceCopier &copier, const Operation &op) {
  entered_.emplace(copier.to_enter(op));
  copier_ = &copier;
}

void MessageTies::close(void *stream) {
  for (const Lane lane : {Lane::Out, Lane::In, Lane::Late})
    if (std::exchange(ties_[lane].owes, false)) copier_->lanes_[lane].order(copier_->runtime_, copier_->device_, stream);
}

void DeviceCopier::mark(Operation &op, MessageTies *ties) {
  const bool streamed = op.call.on_stream || op.call.order_later;
  LaneState &late = made(Lane::Late);
  if (ties && ties->mark_) op.carry.begun = marks_.share(ties->mark_);
  else if (streamed)
    op.carry.begun = marks_.take([&](device::Event &event) {
      event.record(late.users(runtime_, device_, op.call.stream));
      return true;
    });
  else if (marks_.held() < kMostMarked)
    op.carry.begun = marks_.take([&](device::Event &event) { return runtime_.mark_default(device_, event); });
  // The ties have the mark too: each part may be over before the next one is marked.
  if (ties && streamed && !ties->mark_) ties->mark_ = marks_.share(op.carry.begun);
}

// `behind_stream`: the lane is behind what the user's stream held at the call.
void DeviceCopier::put_behind(Operation &op, LaneState &lane, bool behind_stream) {
  device::Stream &stream = *lane.stream;
  if (const StreamMark *const mark = op.carry.begun) {
    if (lane.behind_mark != mark->number) mark->event->hold(stream);
    lane.behind_mark = mark->number;
    forget(op);
  } else if (op.call.on_stream) {
    if (behind_stream) return;
    lane.before->record(lane.users(runtime_, device_, op.call.stream));
    lane.before->hold(stream);
  } else if (lane.behind_default_ns < op.time.submitted_ns) {
    const int64_t now = now_ns();
    if (!runtime_.mark_default(device_, *lane.before)) return;
    lane.before->hold(stream);
    lane.behind_default_ns = now;
  }
}

// ---- copies --------------------------------------------------------------------------------------------------------------------------

void DeviceCopier::reserve(Operation &op) noexcept {
  std::atomic<uint64_t> &armed = lanes_[Lane::In].armed;
  const uint64_t ticket = armed.load(std::memory_order_relaxed) + 1;
  armed.store(ticket, std::memory_order_release);
  op.carry.ticket.store(ticket, std::memory_order_release);
}

// As soon as the signal of a copy behind a gate is armed, the copy may have landed, and the operation may be over.
void DeviceCopier::carry(Operation &op, Lane which, MessageTies *ties) {
  const bool gated = which == Lane::In;
  LaneState &lane = made(which);
  device::Stream &stream = *lane.stream;
  put_behind(op, lane, ties && ties->ties_[which].behind);
  const uint64_t ticket =
      gated ? op.carry.ticket.load(std::memory_order_relaxed) : lane.armed.load(std::memory_order_relaxed) + 1;
  lane.armed.store(ticket, std::memory_order_release);  // some of the work may run, whatever fails from here on
  if (gated) lane.gate->arm(stream, ticket);
  std::byte *const stage = op.carry.send_slot ? op.carry.send_slot : arena_ + op.message.place.piece.offset;
  if (which == Lane::Out) runtime_.copy(stream, stage, op.call.input, op.call.bytes, &cancelled_);
  else runtime_.copy(stream, op.call.output, stage, op.call.bytes, &cancelled_);
  if (op.call.on_stream && ties) {
    ties->ties_[which] = {.behind = true, .owes = true};
  } else if (op.call.on_stream && !op.carry.held) {
    lane.order(runtime_, device_, op.call.stream);
  }
  lane.signal->arm(stream, ticket);  // last: the operation may be over with the signal
  if (!gated) op.carry.ticket.store(ticket, std::memory_order_release);
}

bool DeviceCopier::busy() const noexcept {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const LaneState &lane) { return lane.busy(); });
}

uint64_t DeviceCopier::signalled() const noexcept {
  uint64_t all = 0;
  for (const LaneState &lane : lanes_)
    if (lane.made.load(std::memory_order_acquire)) all += lane.signal->value();
  return all;
}

void DeviceCopier::abort() noexcept {
  cancelled_.store(true, std::memory_order_release);
  // At every call: the gate may have been made since the last call.
  const LaneState &in = lanes_[Lane::In];
  if (in.made.load(std::memory_order_acquire) && in.gate) in.gate->poison();
}

bool DeviceCopier::settled(int64_t now) noexcept {
  constexpr int64_t kPatience = 2'000'000'000;
  return !busy() || waited_.look(now) > kPatience;
}

}  // namespace isthmus::messages
