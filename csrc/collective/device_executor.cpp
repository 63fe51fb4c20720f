#include "collective/device_executor.hpp"

#include <optional>

#include "base/error.hpp"
#include "collective/library_calls.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"

namespace isthmus::collective {

using plan::Memory;
using plan::StepKind;

DeviceExecutor::DeviceExecutor(DeviceExecutorSetup setup, device::Wake wake, void *context)
    : work_(new QueuedWork(std::move(setup), wake, context)), ending_(*work_), early_(*work_) {
  QueuedWork &w = *work_;
  const int device = w.stream->device();
  const device::Capabilities can = w.runtime->capabilities(device);
  if (can.gate != device::GateKind::None) w.doors.make_gates(*w.runtime, device);
  else w.beside.reset();  // the submitting thread stands at every gate, so there is nothing to run beside
  if (w.beside) w.ties.make_second(*w.runtime, device);
  w.signals.make(*w.runtime, device, wake, context);
  private_ = !can.host_access;
  ending_.watch(private_ && w.library && !w.library->capabilities().abort);
  if (!w.scratch) w.scratch = std::make_shared<process::DeviceScratch>(*w.runtime, device);
  w.loan.set_source(w.scratch);
  w.scratch->reserve(w.first_scratch);
}

DeviceExecutor::~DeviceExecutor() {
  ending_.let_go_if_aborted();
  work_->communicator.reset();
  if (ending_.idle()) return;
  work_->stream.reset();
  work_->beside.reset();
  device::keep_for_good(work_.release());  // a queue that has not run to its end still points to the work
}

bool DeviceExecutor::failed() const noexcept {
  return (work_->communicator && work_->communicator->failed()) || ending_.stopped();
}

Status DeviceExecutor::status() const {
  // First: on a stream that was stopped the library says that the device has failed.
  if (ending_.stopped())
    return {Code::Aborted,
            formatted("its stream was stopped, because another communicator of this device failed and {} has no call that "
                      "ends what waits there",
                      family())};
  Status s = work_->communicator ? work_->communicator->status() : Status{};
  if (s.ok()) s = work_->stream->status();
  return s.ok() && work_->beside ? work_->beside->status() : s;
}

void DeviceExecutor::submit(Operation &op, bool behind_host, Wait wait, void *wait_context) {
  work_->doors.begin(wait, wait_context);
  const plan::Plan &p = *op.plan;
  device::Stream &stream = *work_->stream;
  // Once for all calls. Where this thread stands at the doors itself, it has no device of ours meanwhile.
  std::optional<device::Entered> entered;
  if (work_->doors.gated()) entered.emplace(stream);
  StreamTies &ties = work_->ties;
  ending_.begin(op.call.bytes);
  if (op.call.on_stream) ties.user(*work_->runtime, device(), op.call.stream);
  ending_.submits(op.sequence);
  if (op.call.on_stream) ties.behind_user(stream);
  else if (op.call.device) ties.behind_default(*work_->runtime, stream);
  if (behind_host || p.slot_bytes > 0 || op.run.scratch != 0) work_->doors.pass_go(op.sequence, stream);
  const auto aligned = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  const uint64_t input_bytes = op.run.bounce || op.run.lent_input ? op.given_input() : 0,
                 output_bytes = op.run.bounce || op.run.lent_output ? op.given_output() : 0;
  const uint64_t need = aligned(p.device_bytes) + aligned(input_bytes) + output_bytes;
  work_->borrowed = work_->loan.lend(op, need);
  const plan::Operands o = op.operands();
  std::byte *const lent = work_->borrowed + aligned(p.device_bytes);
  const bool bounce = static_cast<bool>(op.run.bounce);
  work_->input = bounce || op.run.lent_input ? lent
                 : op.call.input_there       ? op.call.input_there
                                             : const_cast<std::byte *>(op.call.input);
  work_->output = bounce || op.run.lent_output ? lent + aligned(input_bytes)
                  : op.call.output_there       ? op.call.output_there
                                               : op.call.output;
  for (uint32_t k = 0; k < op.run.bounce.input_pieces; ++k) piece(op, k, work_->input);
  if (op.run.lent_input) copy_blocks(stream, work_->input, op.call.input_there, o.input_displ, o.input_bytes);
  const uint32_t chunks = plan::chunks_of(p, op.operands());
  const bool apart = early_.stands_beside(chunks);
  // Since the second stream was last held behind the first. What comes early is not held behind it.
  bool first_went_on = !early_.come(op);
  op.run.comes_early.store(!first_went_on, std::memory_order_release);
  early_.forget();
  for (plan::Cursor at(p.device, p.steps, chunks); !at.done();) {
    const bool beside = at.stage().beside && apart;
    if (at.begins_stage()) {
      if (beside && first_went_on) ties.fork(stream, *work_->beside);
      first_went_on = !beside;
      if (beside) ties.part();
    }
    device::Stream &its = beside ? *work_->beside : stream;
    if (begins_group(op, at)) {
      group(op, at, its);
    } else {
      step(op, at.step(), at.chunk(), its);
      at.next();
    }
  }
  ties.rejoin(stream, work_->beside.get());
  for (uint32_t k = 0; k < op.run.bounce.output_pieces; ++k) piece(op, op.run.bounce.input_pieces + k, work_->output);
  if (op.run.lent_output) copy_blocks(stream, op.call.output_there, work_->output, o.output_displ, o.output_bytes);
  if (op.call.order_later) work_->marks.mark(op, *work_->runtime, stream);
  else if (op.call.on_stream) ties.user_behind(stream);
  early_.given(op);
  work_->signals.end(op.sequence, stream);  // last: this signal ends the operation, so nothing may fail behind the signal
}

void DeviceExecutor::is_over(Operation &op, bool well) noexcept {
  if (op.run.on_device && well) work_->loan.ended_well(op);
  if (op.end.mark) work_->marks.give(op);
}

// The device works on pinned memory of the user's where the memory lies. There are two exceptions: a copy would be from the host to the host,
// for which vendors' calls wait (Runtime::copy); or the library takes only memory of its device. Then memory of the device stands for the pinned
// memory, and the device copies between the two.
void DeviceExecutor::lend_for_pinned(Operation &op) const noexcept {
  const plan::Plan &p = *op.plan;
  const bool taken = work_->library && work_->library->capabilities().host_memory;
  const auto pinned = [&](Memory m) {
    return m == Memory::Input ? op.call.input_there != nullptr : m == Memory::Output && op.call.output_there != nullptr;
  };
  const auto on_host = [&](Memory m) { return m == Memory::Ring || m == Memory::Scratch || pinned(m); };
  bool input = false, output = false;
  for (const plan::Stage &s : p.device)
    for (uint32_t i = s.step; i < s.step + s.steps; ++i) {
      const plan::Step &step = p.steps[i];
      if (step.kind != StepKind::Move && step.kind != StepKind::Ccl) continue;
      const Memory from = p.sources[step.source].memory, to = step.dst.memory;
      const bool lends = step.kind == StepKind::Ccl ? !taken : on_host(from) && on_host(to) && !to_itself(op, step, 0);
      if (!lends) continue;
      const bool both =
          step.kind == StepKind::Ccl || from != Memory::Input;  // of a copy from input to output one end will do
      input = input || from == Memory::Input || to == Memory::Input;
      output = output || from == Memory::Output || (to == Memory::Output && both);
    }
  op.run.lent_input = input && op.call.input_there;
  op.run.lent_output = output && op.call.output_there;
}

// Blocks that follow each other are one copy.
void DeviceExecutor::copy_blocks(device::Stream &stream, std::byte *to, const std::byte *from,
                                 std::span<const uint64_t> displ, std::span<const uint64_t> bytes) {
  for (size_t b = 0; b < bytes.size();) {
    const uint64_t begin = displ[b];
    uint64_t end = begin + bytes[b];
    for (++b; b < bytes.size() && displ[b] == end; ++b) end += bytes[b];
    work_->runtime->copy(stream, to + begin, from + begin, end - begin, &work_->cancelled);
  }
}

// A slot is used again once a processor has filled the slot, or emptied it. A piece that went in is copied by the time its slot is used for the
// way out.
void DeviceExecutor::piece(const Operation &op, uint32_t k, std::byte *there) {
  const Bounce &b = op.run.bounce;
  device::Stream &stream = *work_->stream;
  const bool input = k < b.input_pieces, waits = input ? k >= b.filled_before : k - b.input_pieces >= b.slots;
  if (waits) work_->doors.pass_pieces(op.sequence, k + 1, stream);
  std::byte *const here = b.device + b.place(k);
  there += b.begin(k);
  work_->runtime->copy(stream, input ? there : here, input ? here : there, b.bytes(k), &work_->cancelled);
  if (!input || k + b.slots < b.input_pieces) work_->signals.copy(op.sequence, k + 1, stream);
}

void DeviceExecutor::finish(uint64_t sequence) noexcept {
  // Two tries: a call that fails once may be this one. Memory of work whose end is not known is given to no operation any more.
  for (int tries = 0; tries < 2; ++tries) {
    if (device::left_behind_here()) return;
    try {
      work_->ties.rejoin(*work_->stream, work_->beside.get());
      work_->signals.end(sequence, *work_->stream);
      return;
    } catch (const Error &) {}
  }
  ending_.unfinished();
}

void DeviceExecutor::group(const Operation &op, plan::Cursor &at, device::Stream &stream) {
  struct Group {
    DeviceExecutor *executor;
    const Operation *op;
    plan::Cursor *at;
    device::Stream *stream;
  } here{this, &op, &at, &stream};
  work_->communicator->together(
      [](void *context) {
        const Group &g = *static_cast<Group *>(context);
        do {
          g.executor->step(*g.op, g.at->step(), g.at->chunk(), *g.stream);
          g.at->next();
        } while (!g.at->done() && !g.at->begins_stage() && g.at->step().kind == StepKind::Ccl);
      },
      &here);
}

void DeviceExecutor::step(const Operation &op, const plan::Step &step, uint32_t c, device::Stream &stream) {
  const plan::Plan &p = *op.plan;
  if (step.kind == StepKind::Wait || step.kind == StepKind::Post) {
    const int64_t v = step.mul * c + step.add;
    if (step.kind == StepKind::Wait && v <= 0) return;  // the slot's first use
    const uint64_t value = value_within(op.sequence, static_cast<uint64_t>(v));
    if (step.kind == StepKind::Wait) work_->doors.pass_ready(value, stream);
    else work_->signals.post(step.counter, stream, value);
    return;
  }
  if (!works(op, step, c)) return;
  const uint64_t bytes = plan::extent_bytes(step.extent, c, op.operands());
  const auto address = [&](const plan::Span &s) -> std::byte * {
    const uint64_t offset = plan::span_offset(p, s, c, op.operands());
    if (s.memory == Memory::Ring)
      return (s.rank < 0 ? work_->arena.at(op.run.ring) : rings_[static_cast<size_t>(s.rank)] + op.run.fixed_turn) + offset;
    if (s.memory == Memory::Scratch) return work_->arena.at(op.run.scratch) + offset;
    if (s.memory == Memory::Device) return work_->borrowed + offset;
    return (s.memory == Memory::Input ? work_->input : work_->output) + offset;
  };
  std::byte *from = address(p.sources[step.source]), *to = address(step.dst);
  if (step.kind == StepKind::Move) work_->runtime->copy(stream, to, from, bytes, &work_->cancelled);
  else call_library(*work_, op, step, from, to, bytes);
}

}  // namespace isthmus::collective
