#include "collective/device_executor.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"

namespace isthmus::collective {

using plan::Memory;
using plan::StepKind;

namespace {
// How long an aborted operation may take to leave the stream before a thread in the library counts as stuck there.
constexpr int64_t kGrace = 100'000'000;
constexpr int64_t kRunning = 500'000'000, kSecondBytes = 500'000'000;  // where all ranks have come: longer, and by its size
constexpr int64_t kPatience = 2'000'000'000;                           // and for what is not in the library
constexpr int64_t kAbort = 100'000'000;                           // for the library to hear of it, before the gates let go
constexpr int64_t kStop = 200'000'000, kStopped = 5'000'000'000;  // before the stream is stopped, and until it was

// Whether a copy is of the user's memory to where it lies already: the root's of a broadcast in place, say.
bool to_itself(const Operation &op, const plan::Step &step, uint32_t c) {
  const auto users = [&](const plan::Span &s) -> const std::byte * {
    const std::byte *const base = s.memory == Memory::Input    ? op.call.in
                                  : s.memory == Memory::Output ? op.call.out
                                                               : nullptr;
    return base ? base + plan::span_offset(*op.plan, s, c, op.operands()) : nullptr;
  };
  const std::byte *const from = users(op.plan->sources[step.source]);
  return from && from == users(step.dst);
}

// Whether a step has something to do in chunk c.
bool works(const Operation &op, const plan::Step &step, uint32_t c) {
  const plan::Plan &p = *op.plan;
  if (!plan::runs_for(p, step, c) || plan::extent_bytes(step.extent, c, op.operands()) == 0) return false;
  // Where other memory stands for the user's each side has a place of its own.
  return step.kind != StepKind::Move || op.bounce || op.lent_in || op.lent_out || !to_itself(op, step, c);
}

}  // namespace

DeviceExecutor::DeviceExecutor(DeviceExecutorSetup setup, device::Wake wake, void *context)
    : shared_(new Shared), wake_(wake), wake_context_(context) {
  static_cast<DeviceExecutorSetup &>(*shared_) = std::move(setup);
  shared_->blocks.resize(4 * shared_->ranks.size());
  const int device = shared_->stream->device();
  const device::Capabilities can = shared_->runtime->capabilities(device);
  waits_ = can.gate == device::GateKind::None;
  if (!waits_) {
    shared_->go.gate = shared_->runtime->make_gate(device);
    shared_->ready.gate = shared_->runtime->make_gate(device);
    shared_->pieces.gate = shared_->runtime->make_gate(device);
  }
  if (waits_) shared_->beside.reset();  // the submitting thread stands at every gate, so there is nothing to run beside
  if (shared_->beside) {
    shared_->forth = shared_->runtime->make_event(device);
    shared_->back = shared_->runtime->make_event(device);
  }
  shared_->staged = shared_->runtime->make_signal(device, wake, context);
  shared_->taken = shared_->runtime->make_signal(device, wake, context);
  shared_->copied = shared_->runtime->make_signal(device, wake, context);
  shared_->ended = shared_->runtime->make_signal(device, wake, context);
  wakes_ = can.signals_wake;
  private_ = !can.host_access;
  endless_ = private_ && shared_->library && !shared_->library->capabilities().abort;
  cuts_.store(shared_->stream->cuts());
  if (!shared_->scratch) shared_->scratch = std::make_shared<process::DeviceScratch>(*shared_->runtime, device);
  shared_->scratch->reserve(shared_->first_scratch);
}

DeviceExecutor::~DeviceExecutor() {
  if (aborted_ns_.load() != 0) let_go();
  shared_->communicator.reset();
  if (idle()) return;
  shared_->stream.reset();
  shared_->beside.reset();
  device::keep_for_good(shared_.release());  // a queue that has not run to its end still points to it
}

Status DeviceExecutor::status() const {
  Status s = shared_->communicator ? shared_->communicator->status() : Status{};
  if (s.ok() && shared_->stream->cuts() != cuts_.load())
    s = {Code::System,
         formatted("its stream was stopped, because another communicator of this device failed and {} has no call that "
                   "ends what waits there",
                   family())};
  if (s.ok()) s = shared_->stream->status();
  return s.ok() && shared_->beside ? shared_->beside->status() : s;
}

device::Stream &DeviceExecutor::user_stream(void *handle) {
  if (!shared_->user || shared_->user->handle() != handle) {
    shared_->user = shared_->runtime->adopt(device(), handle);
    if (!shared_->before) shared_->before = shared_->runtime->make_event(device());
    if (!shared_->after) shared_->after = shared_->runtime->make_event(device());
  }
  return *shared_->user;
}

void DeviceExecutor::open(Door &door, uint64_t value) noexcept {
  uint64_t seen = door.value.load(std::memory_order_relaxed);
  while (seen < value && !door.value.compare_exchange_weak(seen, value, std::memory_order_release)) {}
  if (door.gate) door.gate->open(value);
  else wake_(wake_context_);
}

void DeviceExecutor::pass(Door &door, uint64_t value, device::Stream &stream) {
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

void DeviceExecutor::submit(Operation &op, bool behind_host, Wait wait, void *wait_context) {
  wait_ = wait;
  wait_context_ = wait_context;
  const plan::Plan &p = *op.plan;
  device::Stream &stream = *shared_->stream;
  last_bytes_.store(op.call.bytes);
  if (idle()) cuts_.store(stream.cuts());
  device::Stream *const user = op.call.on_stream ? &user_stream(op.call.stream) : nullptr;
  last_.store(op.sequence);
  if (user) {
    shared_->before->record(*user);
    shared_->before->hold(stream);
  } else if (op.call.device) {
    if (!shared_->before) shared_->before = shared_->runtime->make_event(device());
    shared_->runtime->behind_default(stream, *shared_->before);
  }
  if (behind_host || p.slot_bytes > 0 || op.scratch != 0) pass(shared_->go, op.sequence, stream);
  const auto aligned = [](uint64_t bytes) { return (bytes + 255) / 256 * 256; };
  const uint64_t in_bytes = op.bounce || op.lent_in ? op.given_in() : 0,
                 out_bytes = op.bounce || op.lent_out ? op.given_out() : 0;
  const uint64_t need = aligned(p.device_bytes) + aligned(in_bytes) + out_bytes;
  shared_->borrowed = lend(op, need);
  const plan::Operands o = op.operands();
  std::byte *const lent = shared_->borrowed + aligned(p.device_bytes);
  const bool bounce = static_cast<bool>(op.bounce);
  shared_->in = bounce || op.lent_in ? lent : op.call.in_there ? op.call.in_there : const_cast<std::byte *>(op.call.in);
  shared_->out = bounce || op.lent_out ? lent + aligned(in_bytes) : op.call.out_there ? op.call.out_there : op.call.out;
  for (uint32_t k = 0; k < op.bounce.in_pieces; ++k) piece(op, k, shared_->in);
  if (op.lent_in) copy_blocks(stream, shared_->in, op.call.in_there, o.in_displ, o.in_bytes);
  const uint32_t chunks = plan::chunks_of(p, op.operands());
  bool first_went_on = true;  // since the second was last held behind it
  for (plan::Cursor at(p.device, p.steps, chunks); !at.done(); at.next()) {
    const bool beside = at.stage().beside && shared_->beside && chunks > 1;  // a single one has nothing to run beside
    if (at.begins_stage()) {
      if (beside && first_went_on) {
        shared_->forth->record(stream);
        shared_->forth->hold(*shared_->beside);
      }
      first_went_on = !beside;
      shared_->parted = shared_->parted || beside;
    }
    step(op, at.step(), at.chunk(), beside ? *shared_->beside : stream);
  }
  rejoin();
  for (uint32_t k = 0; k < op.bounce.out_pieces; ++k) piece(op, op.bounce.in_pieces + k, shared_->out);
  if (op.lent_out) copy_blocks(stream, op.call.out_there, shared_->out, o.out_displ, o.out_bytes);
  if (user) {
    shared_->after->record(stream);
    shared_->after->hold(*user);
  }
  shared_->ended->arm(stream, op.sequence);  // last: the operation is over with it, so nothing may fail behind it
}

// Pinned memory of the user's is worked on where it lies, but where a copy would be from the host to the host, for which vendors' calls wait
// (Runtime::copy), or where the library takes only memory of its device. Memory of the device stands for it then, and the device copies.
void DeviceExecutor::lend_for_pinned(Operation &op) const noexcept {
  const plan::Plan &p = *op.plan;
  const bool taken = shared_->library && shared_->library->capabilities().host_memory;
  const auto pinned = [&](Memory m) {
    return m == Memory::Input ? op.call.in_there != nullptr : m == Memory::Output && op.call.out_there != nullptr;
  };
  const auto on_host = [&](Memory m) { return m == Memory::Ring || m == Memory::Scratch || pinned(m); };
  bool in = false, out = false;
  for (const plan::Stage &s : p.device)
    for (uint32_t i = s.step; i < s.step + s.steps; ++i) {
      const plan::Step &step = p.steps[i];
      if (step.kind != StepKind::Move && step.kind != StepKind::Ccl) continue;
      const Memory from = p.sources[step.source].memory, to = step.dst.memory;
      const bool lends = step.kind == StepKind::Ccl ? !taken : on_host(from) && on_host(to) && !to_itself(op, step, 0);
      if (!lends) continue;
      const bool both =
          step.kind == StepKind::Ccl || from != Memory::Input;  // of a copy from input to output one end will do
      in = in || from == Memory::Input || to == Memory::Input;
      out = out || from == Memory::Output || (to == Memory::Output && both);
    }
  op.lent_in = in && op.call.in_there;
  op.lent_out = out && op.call.out_there;
}

// Blocks that follow each other are one copy.
void DeviceExecutor::copy_blocks(device::Stream &stream, std::byte *to, const std::byte *from,
                                 std::span<const uint64_t> displ, std::span<const uint64_t> bytes) {
  for (size_t b = 0; b < bytes.size();) {
    const uint64_t begin = displ[b];
    uint64_t end = begin + bytes[b];
    for (++b; b < bytes.size() && displ[b] == end; ++b) end += bytes[b];
    shared_->runtime->copy(stream, to + begin, from + begin, end - begin, &shared_->cancelled);
  }
}

// A slot is used again once a processor has filled it, or emptied it. One that went in is copied by the time its slot is used for the way out.
void DeviceExecutor::piece(const Operation &op, uint32_t k, std::byte *there) {
  const Bounce &b = op.bounce;
  device::Stream &stream = *shared_->stream;
  const bool in = k < b.in_pieces, waits = in ? k >= b.filled_before : k - b.in_pieces >= b.slots;
  if (waits) pass(shared_->pieces, piece_value(op.sequence, k + 1), stream);
  std::byte *const here = b.device + b.place(k);
  there += b.begin(k);
  shared_->runtime->copy(stream, in ? there : here, in ? here : there, b.bytes(k), &shared_->cancelled);
  if (!in || k + b.slots < b.in_pieces) shared_->copied->arm(stream, piece_value(op.sequence, k + 1));
}

std::byte *DeviceExecutor::lend(Operation &op, size_t bytes) {
  if (bytes == 0) return nullptr;
  Shared &s = *shared_;
  {
    const Lock lock(s.scratch_mutex);
    ++s.users;
    op.on_device = true;
    if (s.lent.bytes >= bytes) return static_cast<std::byte *>(s.lent.memory);
  }
  try {
    const process::DeviceScratch::Block more = s.scratch->take(bytes);
    const Lock lock(s.scratch_mutex);
    if (s.lent.memory) s.outgrown.push_back(s.lent);
    s.lent = more;
    return static_cast<std::byte *>(more.memory);
  } catch (...) {
    ended_well(op);
    throw;
  }
}

void DeviceExecutor::ended_well(Operation &op) noexcept {
  if (!std::exchange(op.on_device, false)) return;
  Shared &s = *shared_;
  const Lock lock(s.scratch_mutex);
  if (--s.users != 0) return;
  s.scratch->give(std::exchange(s.lent, {}));
  for (const process::DeviceScratch::Block &b : s.outgrown) s.scratch->give(b);
  s.outgrown.clear();
}

void DeviceExecutor::rejoin() {
  if (!shared_->parted) return;
  shared_->back->record(*shared_->beside);
  shared_->back->hold(*shared_->stream);
  shared_->parted = false;
}

void DeviceExecutor::finish(uint64_t sequence) noexcept {
  // Twice: a call that fails once may be this one, and what is not known to have ended is nobody's any more.
  for (int tries = 0; tries < 2; ++tries) {
    if (device::left_behind_here()) return;
    try {
      rejoin();
      shared_->ended->arm(*shared_->stream, sequence);
      return;
    } catch (const Error &) {}
  }
  unfinished_.store(true);
}

void DeviceExecutor::step(const Operation &op, const plan::Step &step, uint32_t c, device::Stream &stream) {
  const plan::Plan &p = *op.plan;
  if (step.kind == StepKind::Wait || step.kind == StepKind::Post) {
    const int64_t v = step.mul * c + step.add;
    if (step.kind == StepKind::Wait && v <= 0) return;  // the slot's first use
    const uint64_t value = (op.sequence << plan::kValueBits) + static_cast<uint64_t>(v);
    if (step.kind == StepKind::Wait) pass(shared_->ready, value, stream);
    else (step.counter == plan::kStaged ? shared_->staged : shared_->taken)->arm(stream, value);
    return;
  }
  if (!works(op, step, c)) return;
  const uint64_t bytes = plan::extent_bytes(step.extent, c, op.operands());
  const auto address = [&](const plan::Span &s) -> std::byte * {
    const uint64_t offset = plan::span_offset(p, s, c, op.operands());
    if (s.memory == Memory::Ring)
      return (s.rank < 0 ? shared_->arena + op.ring : rings_[static_cast<size_t>(s.rank)]) + offset;
    if (s.memory == Memory::Scratch) return shared_->arena + op.scratch + offset;
    if (s.memory == Memory::Device) return shared_->borrowed + offset;
    return (s.memory == Memory::Input ? shared_->in : shared_->out) + offset;
  };
  std::byte *from = address(p.sources[step.source]), *to = address(step.dst);
  if (step.kind == StepKind::Ccl && step.call == IslandCall::AllToAllV) exchange_blocks(op, p.sources[step.source]);
  else if (step.kind == StepKind::Move) shared_->runtime->copy(stream, to, from, bytes, &shared_->cancelled);
  else call(op, step, from, to, bytes / dtype_size(op.call.dtype));
}

void DeviceExecutor::call(const Operation &op, const plan::Step &step, const void *from, void *to, uint64_t count) {
  ccl::IslandCommunicator &c = *shared_->communicator;
  const DType dtype = op.call.dtype;
  const ccl::Reduction by{step.op, step.halvings};
  switch (step.call) {
    case IslandCall::AllReduce: return c.all_reduce(from, to, count, dtype, by);
    case IslandCall::Reduce: return c.reduce(from, to, count, dtype, by, step.peer);
    case IslandCall::Broadcast: return c.broadcast(to, count, dtype, step.peer);
    case IslandCall::AllGather: return c.all_gather(from, to, count, dtype);
    case IslandCall::ReduceScatter: return c.reduce_scatter(from, to, count, dtype, by);
    case IslandCall::AllToAll: return c.all_to_all(from, to, count, dtype);
    case IslandCall::AllToAllV: return;  // exchange_blocks()
    case IslandCall::Send: return c.send(from, count, dtype, step.peer);
    case IslandCall::Recv: return c.recv(to, count, dtype, step.peer);
  }
}

// The blocks of the user's buffers that are those of the group's ranks; or, of memory of the device, which has them back to back by position.
void DeviceExecutor::exchange_blocks(const Operation &op, const plan::Span &from) {
  const plan::Operands o = op.operands();
  const size_t n = shared_->ranks.size();
  const std::span<uint64_t> give(shared_->blocks.data(), n), give_at(give.data() + n, n), take(give.data() + 2 * n, n),
      take_at(give.data() + 3 * n, n);
  const bool copied = from.memory == Memory::Device;
  uint64_t at = 0;
  for (size_t j = 0; j < n; ++j) {
    const auto q = static_cast<size_t>(shared_->ranks[j]);
    give[j] = o.in_bytes[q];
    give_at[j] = copied ? at : o.in_displ[q];
    take[j] = o.out_bytes[q];
    take_at[j] = o.out_displ[q];
    at += give[j];
  }
  const std::byte *const base = copied ? shared_->borrowed + from.base : shared_->in;
  shared_->communicator->all_to_all_v(base, shared_->out, {give, give_at, take, take_at});
}

std::string DeviceExecutor::standing(const Operation &op) const {
  if (ended(op.sequence)) return {};
  const plan::Plan &p = *op.plan;
  const uint32_t chunks = plan::chunks_of(p, op.operands());
  struct Given {
    const plan::Step *step = nullptr;
    uint32_t chunk = 0;
  } first, second, last;
  size_t given = 0;
  const auto name = [&](const Given &g) {
    const std::string what = g.step->kind == StepKind::Move ? "a copy" : island_call_name(g.step->call);
    return chunks > 1 ? what + formatted(" of chunk {} of {}", g.chunk + 1, chunks) : what;
  };
  const auto text = [&]() -> std::string {
    if (given == 0) return {};
    if (given == 1) return name(last);
    const std::string more = given > 3 ? formatted(", {} more", given - 3) : std::string();
    return name(first) + (given > 2 ? ", " + name(second) : std::string()) + more + " or " + name(last);
  };
  for (plan::Cursor at(p.device, p.steps, chunks); !at.done(); at.next()) {
    const plan::Step &step = at.step();
    const uint32_t c = at.chunk();
    const int64_t v = step.mul * c + step.add;
    const uint64_t value = (op.sequence << plan::kValueBits) + static_cast<uint64_t>(v);
    if (step.kind == StepKind::Wait) {
      if (v > 0 && shared_->ready.value.load(std::memory_order_acquire) < value) return text();
    } else if (step.kind == StepKind::Post) {
      if (posted(step.counter) < value) return text();
      given = 0;
    } else if (works(op, step, c)) {
      last = {&step, c};
      ++given;
      if (given == 1) first = last;
      if (given == 2) second = last;
    }
  }
  return text();
}

// A call that stands behind a gate may be one that must not begin: of sizes that do not fit, say.
void DeviceExecutor::abort() noexcept {
  int64_t since = 0;
  const int64_t now = now_ns();
  if (aborted_ns_.compare_exchange_strong(since, now)) {
    since = now;
    shared_->cancelled.store(true, std::memory_order_release);
    if (shared_->communicator) shared_->communicator->abort();
  }
  if (!shared_->communicator || !shared_->communicator->aborting() || now - since >= kAbort) let_go();
}

void DeviceExecutor::let_go() noexcept {
  if (let_go_.exchange(true)) return;
  for (Door *door : {&shared_->go, &shared_->ready, &shared_->pieces})
    if (door->gate) door->gate->poison();
  wake_(wake_context_);
}

bool DeviceExecutor::wants_stop(int64_t now) const noexcept {
  return endless_ && !idle() && now - aborted_ns_.load() >= kStop;
}

bool DeviceExecutor::settled(int64_t now, bool alone, bool refused) noexcept {
  if (ended(last_.load()) || left_behind_.load() || dead_.load(std::memory_order_acquire)) return true;
  const int64_t passed = now - aborted_ns_.load();
  const auto running = kRunning + static_cast<int64_t>(last_bytes_.load()) * (1'000'000'000 / kSecondBytes);
  if (endless_ && !refused && passed < kStopped) return false;  // it is about to be stopped
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

}  // namespace isthmus::collective
