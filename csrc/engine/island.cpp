#include "engine/island.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"

namespace isthmus::engine {

using plan::Memory;
using plan::StepKind;

namespace {
// How long an aborted operation may take to leave the stream before a thread in the library counts as stuck there.
constexpr int64_t kGrace = 100'000'000;
constexpr int64_t kRunning = 500'000'000, kSecondBytes = 500'000'000;  // where all ranks have come: longer, and by its size
constexpr int64_t kPatience = 2'000'000'000;                           // and for what is not in the library

// How far the blocks reach.
uint64_t extent_of(std::span<const uint64_t> displ, std::span<const uint64_t> bytes) {
  uint64_t end = 0;
  for (size_t b = 0; b < bytes.size(); ++b) end = std::max(end, bytes[b] ? displ[b] + bytes[b] : 0);
  return end;
}
}  // namespace

Island::Island(IslandSetup setup, device::Wake wake, void *context)
    : shared_(new Shared), wake_(wake), wake_context_(context) {
  static_cast<IslandSetup &>(*shared_) = std::move(setup);
  const int device = shared_->stream->device();
  const device::Capabilities can = shared_->runtime->capabilities(device);
  waits_ = can.gate == device::GateKind::None;
  if (!waits_) {
    shared_->go.gate = shared_->runtime->make_gate(device);
    shared_->ready.gate = shared_->runtime->make_gate(device);
  }
  if (waits_) shared_->beside.reset();  // the submitting thread stands at every gate, so there is nothing to run beside
  if (shared_->beside) {
    shared_->forth = shared_->runtime->make_event(device);
    shared_->back = shared_->runtime->make_event(device);
  }
  shared_->staged = shared_->runtime->make_signal(device, wake, context);
  shared_->taken = shared_->runtime->make_signal(device, wake, context);
  shared_->ended = shared_->runtime->make_signal(device, wake, context);
  wakes_ = can.signals_wake;
  private_ = !can.host_access;
  if (shared_->first_scratch > 0) {
    shared_->scratch = shared_->runtime->allocate(device, shared_->first_scratch);
    shared_->scratch_bytes = shared_->first_scratch;
  }
}

Island::~Island() {
  shared_->communicator.reset();
  if (idle()) return;
  shared_->stream.reset();
  shared_->beside.reset();
  device::keep_for_good(shared_.release());  // a queue that has not run to its end still points to it
}

Status Island::status() const {
  Status s = shared_->communicator ? shared_->communicator->status() : Status{};
  if (s.ok()) s = shared_->stream->status();
  return s.ok() && shared_->beside ? shared_->beside->status() : s;
}

device::Stream &Island::user_stream(void *handle) {
  if (!shared_->user || shared_->user->handle() != handle) {
    shared_->user = shared_->runtime->adopt(device(), handle);
    if (!shared_->before) shared_->before = shared_->runtime->make_event(device());
    if (!shared_->after) shared_->after = shared_->runtime->make_event(device());
  }
  return *shared_->user;
}

void Island::open(Door &door, uint64_t value) noexcept {
  uint64_t seen = door.value.load(std::memory_order_relaxed);
  while (seen < value && !door.value.compare_exchange_weak(seen, value, std::memory_order_release)) {}
  if (door.gate) door.gate->open(value);
  else wake_(wake_context_);
}

void Island::pass(Door &door, uint64_t value, device::Stream &stream) {
  if (door.value.load(std::memory_order_acquire) >= value) return;  // what is submitted now need not wait for it
  if (door.gate) return door.gate->arm(stream, value);
  struct What {
    const Door *door;
    uint64_t value;
    const std::atomic<bool> *cancelled;
  } const what{&door, value, &shared_->cancelled};
  const auto holds = [](const void *p) {
    const auto &w = *static_cast<const What *>(p);
    return w.door->value.load(std::memory_order_acquire) >= w.value || w.cancelled->load(std::memory_order_acquire);
  };
  if (!holds(&what)) wait_(wait_context_, holds, &what);
  if (shared_->cancelled.load(std::memory_order_acquire)) fail(Code::Aborted, "the communicator has failed");
}

void Island::submit(const Op &op, bool behind_host, Wait wait, void *wait_context) {
  wait_ = wait;
  wait_context_ = wait_context;
  const plan::Plan &p = *op.plan;
  device::Stream &stream = *shared_->stream;
  last_bytes_.store(op.call.bytes);
  device::Stream *const user = op.call.on_stream ? &user_stream(op.call.stream) : nullptr;
  last_.store(op.sequence);
  if (user) {
    shared_->before->record(*user);
    shared_->before->hold(stream);
  }
  if (behind_host || p.slot_bytes > 0 || op.scratch != 0) pass(shared_->go, op.sequence, stream);
  const auto aligned = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  const uint64_t in_bytes = op.bounce ? extent_of(op.operands().in_displ, op.operands().in_bytes) : 0,
                 out_bytes = op.bounce ? extent_of(op.operands().out_displ, op.operands().out_bytes) : 0;
  const uint64_t need = aligned(p.device_bytes) + aligned(in_bytes) + out_bytes;
  if (need > shared_->scratch_bytes) {
    void *const more = shared_->runtime->allocate(stream.device(), need);
    if (shared_->scratch) shared_->outgrown.push_back(shared_->scratch);
    shared_->scratch = more;
    shared_->scratch_bytes = need;
  }
  shared_->in = const_cast<std::byte *>(op.call.in);
  shared_->out = op.call.out;
  if (op.bounce) {
    shared_->in = static_cast<std::byte *>(shared_->scratch) + aligned(p.device_bytes);
    shared_->out = shared_->in + aligned(in_bytes);
    if (op.call.in && in_bytes)
      shared_->runtime->copy(stream, shared_->in, shared_->arena + op.bounce, in_bytes, &shared_->cancelled);
  }
  uint32_t skew = 0;
  for (const plan::Stage &s : p.device) skew = std::max(skew, s.skew);
  const uint32_t chunks = plan::chunks_of(p, op.operands());
  bool first_went_on = true;  // since the second was last held behind it
  for (uint32_t t = 0; chunks > 0 && t < chunks + skew; ++t)
    for (const plan::Stage &s : p.device) {
      if (t < s.skew || t - s.skew >= chunks || s.steps == 0) continue;
      const bool beside = s.beside && shared_->beside && chunks > 1;  // a single one has nothing to run beside
      if (beside && first_went_on) {
        shared_->forth->record(stream);
        shared_->forth->hold(*shared_->beside);
      }
      first_went_on = !beside;
      shared_->parted = shared_->parted || beside;
      for (uint32_t i = 0; i < s.steps; ++i) step(op, p.steps[s.step + i], t - s.skew, beside ? *shared_->beside : stream);
    }
  rejoin();
  if (op.bounce && op.call.out && out_bytes)
    shared_->runtime->copy(stream, shared_->arena + op.bounce_out, shared_->out, out_bytes, &shared_->cancelled);
  if (user) {
    shared_->after->record(stream);
    shared_->after->hold(*user);
  }
  shared_->ended->arm(stream, op.sequence);  // last: the operation is over with it, so nothing may fail behind it
}

void Island::rejoin() {
  if (!shared_->parted) return;
  shared_->back->record(*shared_->beside);
  shared_->back->hold(*shared_->stream);
  shared_->parted = false;
}

void Island::finish(uint64_t sequence) noexcept {
  if (device::left_behind_here()) return;
  try {
    rejoin();
    shared_->ended->arm(*shared_->stream, sequence);
  } catch (const Error &) { unfinished_.store(true); }
}

void Island::step(const Op &op, const plan::Step &step, uint32_t c, device::Stream &stream) {
  const plan::Plan &p = *op.plan;
  if (step.kind == StepKind::Wait || step.kind == StepKind::Post) {
    const int64_t v = step.mul * c + step.add;
    if (step.kind == StepKind::Wait && v <= 0) return;  // the slot's first use
    const uint64_t value = (op.sequence << plan::kValueBits) + static_cast<uint64_t>(v);
    if (step.kind == StepKind::Wait) pass(shared_->ready, value, stream);
    else (step.counter == plan::kStaged ? shared_->staged : shared_->taken)->arm(stream, value);
    return;
  }
  if (!plan::runs_for(p, step, c)) return;
  const uint64_t bytes = plan::extent_bytes(step.extent, c, op.operands());
  if (bytes == 0) return;
  const auto address = [&](const plan::Span &s) -> std::byte * {
    const uint64_t offset = plan::span_offset(p, s, c, op.operands());
    if (s.memory == Memory::Ring)
      return (s.rank < 0 ? shared_->arena + op.ring : rings_[static_cast<size_t>(s.rank)]) + offset;
    if (s.memory == Memory::Scratch) return shared_->arena + op.scratch + offset;
    if (s.memory == Memory::Device) return static_cast<std::byte *>(shared_->scratch) + offset;
    return (s.memory == Memory::Input ? shared_->in : shared_->out) + offset;
  };
  std::byte *from = address(p.sources[step.source]), *to = address(step.dst);
  if (step.kind == StepKind::Move) shared_->runtime->copy(stream, to, from, bytes, &shared_->cancelled);
  else call(op, step, from, to, bytes / dtype_size(op.call.dtype));
}

void Island::call(const Op &op, const plan::Step &step, const void *from, void *to, uint64_t count) {
  ccl::Communicator &c = *shared_->communicator;
  const DType dtype = op.call.dtype;
  const RedOp red = step.op;
  switch (step.call) {
    case IslandCall::AllReduce: return c.all_reduce(from, to, count, dtype, red);
    case IslandCall::Reduce: return c.reduce(from, to, count, dtype, red, step.peer);
    case IslandCall::Broadcast: return c.broadcast(to, count, dtype, step.peer);
    case IslandCall::AllGather: return c.all_gather(from, to, count, dtype);
    case IslandCall::ReduceScatter: return c.reduce_scatter(from, to, count, dtype, red);
    case IslandCall::AllToAll: return c.all_to_all(from, to, count, dtype);
    case IslandCall::Send: return c.send(from, count, dtype, step.peer);
    case IslandCall::Recv: return c.recv(to, count, dtype, step.peer);
  }
}

void Island::abort() noexcept {
  int64_t never = 0;
  if (!aborted_ns_.compare_exchange_strong(never, now_ns())) return;
  shared_->cancelled.store(true, std::memory_order_release);
  if (shared_->communicator) shared_->communicator->abort();
  for (Door *door : {&shared_->go, &shared_->ready})
    if (door->gate) door->gate->poison();
  wake_(wake_context_);
}

bool Island::settled(int64_t now, bool alone) noexcept {
  if (ended(last_.load()) || left_behind_.load() || dead_.load(std::memory_order_acquire)) return true;
  const int64_t passed = now - aborted_ns_.load();
  const auto running = kRunning + static_cast<int64_t>(last_bytes_.load()) * (1'000'000'000 / kSecondBytes);
  if (passed < (alone ? kGrace : running)) return false;
  if (const char *call = doing()) {
    ISTHMUS_WARN("{} is stuck in {}, which has no call that ends it: its thread is left behind", family(), call);
    shared_->communicator->leave_behind();
  } else if (!(shared_->communicator && shared_->communicator->held_up()) && passed < kPatience) {
    return false;  // it is in a copy of ours, which ends
  }
  left_behind_.store(true);  // what still stands in the queue is skipped
  return true;
}

}  // namespace isthmus::engine
