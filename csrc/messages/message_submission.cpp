#include "messages/message_submission.hpp"

#include <algorithm>
#include <chrono>
#include <optional>

#include "engine/device_waits.hpp"

namespace isthmus::messages {

namespace {

bool on_device(const Operation &op) noexcept { return op.call.device && op.call.bytes != 0; }

}  // namespace

struct MessageSubmission::OnDevice {
  OnDevice(MessageSubmission &submission, const Operation &op) : wanted(on_device(op)) {
    RankCore &core = submission.core_;
    if (!wanted) return;
    core.uses_device.store(true, std::memory_order_relaxed);
    lock.emplace(core.lock_for(core.message_lock, &op));
    if (!*lock || core.failed() || !submission.device_.copier) return;
    try {
      ties.open(*submission.device_.copier, op);
    } catch (const Error &e) { core.not_submitted(op, e); }
  }
  bool refused() const noexcept { return wanted && !*lock; }
  const bool wanted;
  std::optional<SubmitLock::Held> lock;
  MessageTies ties;
};

void MessageSubmission::submit(Operation *op) noexcept {
  if (sizes_.cuts(op->call.bytes)) return submit_parts(op);
  core_.pending.fetch_add(1, std::memory_order_acq_rel);
  if (core_.failed()) core_.end(op, core_.failure().code, core_.about(*op));
  else submit_one(op);
}

Operation *MessageSubmission::make_part(Operation *op, uint32_t i, uint64_t size) noexcept {
  Operation *const part = OperationPool::instance().take();  // the part's one reference is the engine's
  const uint64_t whole = op->call.bytes;
  part->call = op->call;
  part->call.bytes = std::min(size, whole - i * size);
  if (op->call.input) part->call.input += i * size;
  if (op->call.output) part->call.output += i * size;
  part->label = op->label;
  part->cut.whole = whole;
  part->cut.part = i;
  part->end.parent = op;
  part->rank = op->rank;
  part->core = &core_;
  part->keep = core_.port.itself().lock();
  if (op->call.order_later) {
    OperationPool::retain(part);
    op->cut.parts.push_back(part);
  }
  part->time.submitted_ns = op->time.submitted_ns;
  part->time.deadline_ns = op->time.deadline_ns;
  part->message.grouped = op->message.grouped;
  part->message.counted = op->message.counted && i == 0;  // a message meets its receive with its first part
  part->message.slot.promised = op->message.slot.promised && sizes_.take_slot(part);
  return part;
}

// All ranks cut alike. So the memory of the two sides, host or device, makes no difference.
void MessageSubmission::submit_parts(Operation *op) noexcept {
  const uint64_t size = sizes_.of(op->call.dtype);
  const auto parts = static_cast<uint32_t>((op->call.bytes + size - 1) / size);
  op->cut.is_whole = true;
  op->end.children.store(parts + 1, std::memory_order_relaxed);
  {
    const Numbered whole_message = in_order(*op);
    const engine::CountedCall counted(core_);
    OnDevice here(*this, *op);
    for (uint32_t i = 0; i < parts; ++i) {
      Operation *const part = make_part(op, i, size);
      OperationPool::retain(part);  // this thread may come out of the runtime after the part is over
      core_.pending.fetch_add(1, std::memory_order_acq_rel);
      if (core_.failed() || here.refused()) core_.end(part, core_.failure().code, core_.about(*part));
      else submit_part(part, &here.ties);
      OperationPool::instance().release(part);
    }
    try {
      if (here.ties.opened() && !core_.failed()) here.ties.close(op->call.stream);
    } catch (const Error &e) { core_.not_submitted(*op, e); }
  }
  if (op->end.children.fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_operation(op, op->end.result, std::string(op->end.text), now_ns());
}

// The parts of one message come one after the other, also where several threads call. So do the messages that are numbered with the parts.
MessageSubmission::Numbered MessageSubmission::in_order(const Operation &op) noexcept {
  std::recursive_timed_mutex &mutex = order_[op.call.collective == Collective::Send ? 0 : 1];
  Numbered numbered(mutex, std::try_to_lock);
  // The thread that has the mutex may be stuck in the runtime. After a failure there is no order any more. (ThreadSanitizer knows this clock alone.)
  while (!numbered && !core_.failed() && now_ns() < op.time.deadline_ns) {
    core_.context->progress().stand_in();
    (void)numbered.try_lock_until(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  }
  return numbered;
}

void MessageSubmission::submit_one(Operation *op) noexcept {
  Numbered numbered;
  if (sizes_.take_slot(op)) numbered = in_order(*op);
  const OnDevice here(*this, *op);
  if (here.refused()) return core_.end(op, core_.failure().code, core_.about(*op));
  submit_part(op, nullptr);  // nothing comes between the copy of a message that is not cut and its ties to the stream
}

// With the message lock, where the message is in a device's memory.
void MessageSubmission::submit_part(Operation *op, MessageTies *ties) noexcept {
  const bool send = op->call.collective == Collective::Send;
  if (on_device(*op)) {
    // This thread may be held up in the runtime. The progress thread has to see the deadline all the same, and to go on with the parts before.
    core_.activate();
    return send ? send_from_device(op, ties) : recv_to_device(op, ties);
  }
  if (send) matcher_.start_send(op, SendTurn::Awaits);
  else matcher_.start_recv(op);
}

void MessageSubmission::send_from_device(Operation *op, MessageTies *ties) noexcept {
  op->carry.port = Port::Taken;
  bool behind = false;
  {
    const auto s = table_.lock();
    sends_.number(*s, op);
    table_.begin_moving(s->taking, op);
    behind = s->starved[is_small(op)] != 0;
  }
  if (core_.failed() || !device_.copier) return;  // drive() ends the send
  try {
    if (!behind && (sends_.put(op) || (!sends_.worth_waiting(op) && places_.stage_send(op))))
      return device_.copier->take(*op, ties);
    if (op->call.on_stream) device_.copier->mark(*op, ties);
  } catch (const Error &e) { return core_.not_submitted(*op, e); }
  if (op->call.on_stream) {
    op->carry.held = true;
    streams_.hold(op, op->call.stream);
  }
  copies_.wait(op);
  core_.activate();  // this thread may wait for another communicator, which waits for this one
  core_.wake();
}

// The receive begins before its copy is submitted. In a call of the runtime this thread may wait for the device's work before the copy, and that
// work may need the receive.
bool MessageSubmission::expect(Operation *op) noexcept {
  op->carry.port = Port::Expected;
  if (sizes_.take_slot(op) && matcher_.start_recv(op)) return true;
  return places_.stage_ahead(op) && matcher_.start_recv(op);
}

void MessageSubmission::recv_to_device(Operation *op, MessageTies *ties) noexcept {
  if (core_.failed() || !device_.copier) return (void)matcher_.start_recv(op);  // drive() ends the receive
  struct Keep {  // once the receive has begun, the receive may be over before its submission has ended
    Operation *op = nullptr;
    ~Keep() {
      if (op) OperationPool::instance().release(op);
    }
  } keep;
  bool begun = false;
  try {
    if (op->call.order_later) {
      if (!op->carry.begun) device_.copier->mark(*op, ties);
      op->call.on_stream = false;
    }
    if (op->call.on_stream && device_.copier->gates() && copies_.submit_all(op)) {
      device_.copier->make_gate();
      if (!op->life.inline_op) {
        OperationPool::retain(op);
        keep.op = op;
      }
      engine::enter_waits(core_, *op);
      op->carry.waits_for_rank = true;
      begun = expect(op);
      if (begun) return device_.copier->expect(*op, ties);
      op->carry.waits_for_rank = false;
      engine::leave_waits(core_);
    }
    op->carry.port = op->call.on_stream ? Port::Caller : Port::Worker;
    op->message.place.inherits = false;
    // Without a piece, the message waits for a place when the message has come.
    if (is_small(op) && !sizes_.take_slot(op) && !op->message.place.own) places_.stage(op, p2p::Share::SmallAhead);
  } catch (const Error &e) {
    core_.not_submitted(*op, e);
    if (begun) return;
  }
  if (op->carry.port == Port::Caller) streams_.hold(op, op->call.stream);
  const bool by_default =
      op->carry.port == Port::Worker && !op->carry.begun && op->cut.whole == 0;  // of many parts none is marked
  if (by_default && !op->life.inline_op) {
    OperationPool::retain(op);
    keep.op = op;
  }
  matcher_.start_recv(op);
  // Not before: the mark may wait for what the default stream holds, and that may need the receive. With message_lock no copy is submitted meanwhile.
  if (!by_default) return;
  try {
    device_.copier->mark(*op);
  } catch (const Error &e) { core_.not_submitted(*op, e); }
}

}  // namespace isthmus::messages
