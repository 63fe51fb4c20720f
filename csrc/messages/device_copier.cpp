#include "messages/device_copier.hpp"

#include <utility>

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
      wakes_(runtime.capabilities(device).signals_wake) {}

DeviceCopier::~DeviceCopier() {
  for (Lane *lane : {&out_, &in_, &late_}) {
    if (!lane->made.load() || lane->signal->value() >= lane->armed.load()) continue;
    // Work to which the device has not come still points to these objects.
    device::keep_for_good(lane->signal.release());
    device::keep_for_good(lane->gate.release());
    device::keep_for_good(lane->stream.release());
  }
}

void DeviceCopier::make(Lane &lane) {
  if (lane.made.load(std::memory_order_relaxed)) return;
  lane.stream = runtime_.make_stream(device_, "isthmus messages");
  lane.signal = runtime_.make_signal(device_, wake_, context_);
  lane.before = runtime_.make_event(device_);
  lane.after = runtime_.make_event(device_);
  if (&lane == &in_) lane.gate = runtime_.make_gate(device_);
  lane.made.store(true, std::memory_order_release);
}

device::Stream &DeviceCopier::user(Lane &lane, void *handle) {
  if (!lane.user || lane.user->handle() != handle) lane.user = runtime_.adopt(device_, handle);
  return *lane.user;
}

void DeviceCopier::mark(Operation &op) {
  const bool streamed = op.call.on_stream || op.call.order_later;
  make(late_);
  std::unique_ptr<device::Event> mark;
  {
    const Lock lock(marks_lock_);
    if (!streamed && marked_ >= kMostMarked) return;
    if (!marks_.empty()) {
      mark = std::move(marks_.back());
      marks_.pop_back();
    }
  }
  if (!mark) mark = runtime_.make_event(device_);
  if (streamed) mark->record(user(late_, op.call.stream));
  const bool marked = streamed || runtime_.mark_default(device_, *mark);
  const Lock lock(marks_lock_);
  if (!marked) return marks_.push_back(std::move(mark));
  op.carry.begun = mark.release();
  ++marked_;
}

void DeviceCopier::forget(Operation &op) noexcept {
  const Lock lock(marks_lock_);
  marks_.emplace_back(std::exchange(op.carry.begun, nullptr));
  --marked_;
}

void DeviceCopier::order(const Operation &op, void *stream) {
  if (landed(op)) return;
  Lane &lane = op.carry.port == Port::Expected ? in_ : late_;
  lane.after->record(*lane.stream);
  lane.after->hold(user(lane, stream));
}

void DeviceCopier::reserve(Operation &op) noexcept {
  const uint64_t ticket = in_.armed.load(std::memory_order_relaxed) + 1;
  in_.armed.store(ticket, std::memory_order_release);
  op.carry.ticket.store(ticket, std::memory_order_release);
}

// As soon as the signal of a copy behind a gate is armed, the copy may have landed, and the operation may be over.
void DeviceCopier::carry(Operation &op, Lane &lane) {
  const bool gated = &lane == &in_;
  make(lane);
  device::Stream &stream = *lane.stream;
  device::Stream *const theirs = op.call.on_stream ? &user(lane, op.call.stream) : nullptr;
  if (op.carry.begun) {
    op.carry.begun->hold(stream);
    forget(op);
  } else if (theirs) {
    lane.before->record(*theirs);
    lane.before->hold(stream);
  } else {
    runtime_.behind_default(stream, *lane.before);
  }
  const uint64_t ticket =
      gated ? op.carry.ticket.load(std::memory_order_relaxed) : lane.armed.load(std::memory_order_relaxed) + 1;
  lane.armed.store(ticket, std::memory_order_release);  // some of the work may run, whatever fails from here on
  if (gated) lane.gate->arm(stream, ticket);
  std::byte *const stage = op.carry.send_slot ? op.carry.send_slot : arena_ + op.message.place.piece.offset;
  if (&lane == &out_) runtime_.copy(stream, stage, op.call.input, op.call.bytes, &cancelled_);
  else runtime_.copy(stream, op.call.output, stage, op.call.bytes, &cancelled_);
  if (theirs) {
    lane.after->record(stream);
    lane.after->hold(*theirs);
  }
  lane.signal->arm(stream, ticket);  // last: the operation may be over with the signal
  if (!gated) op.carry.ticket.store(ticket, std::memory_order_release);
}

bool DeviceCopier::busy() const noexcept {
  for (const Lane *lane : {&out_, &in_, &late_})
    if (lane->made.load(std::memory_order_acquire) && lane->signal->value() < lane->armed.load(std::memory_order_acquire))
      return true;
  return false;
}

uint64_t DeviceCopier::signalled() const noexcept {
  uint64_t all = 0;
  for (const Lane *lane : {&out_, &in_, &late_})
    if (lane->made.load(std::memory_order_acquire)) all += lane->signal->value();
  return all;
}

void DeviceCopier::abort() noexcept {
  cancelled_.store(true, std::memory_order_release);
  // At every call: the gate may have been made since the last call.
  if (in_.made.load(std::memory_order_acquire) && in_.gate) in_.gate->poison();
}

bool DeviceCopier::settled(int64_t now) noexcept {
  constexpr int64_t kPatience = 2'000'000'000;
  return !busy() || waited_.look(now) > kPatience;
}

}  // namespace isthmus::messages
