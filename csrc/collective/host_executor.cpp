#include "collective/host_executor.hpp"

#include <algorithm>

#include "base/copy.hpp"
#include "base/log.hpp"

namespace isthmus::collective {

using plan::Memory;
using plan::StepKind;

namespace {

bool shares_memory(const topology::Topology &t) noexcept {  // any rank with another one
  for (size_t q = 0; q < t.memory_of.size(); ++q)
    if (t.memory_of[q] != static_cast<int>(q)) return true;
  return false;
}

// How the stores go is measured as for copies without helpers.
void copy_into_slot(process::Helpers &helpers, StreamingCopy &streaming, std::byte *to, const std::byte *from,
                    uint64_t bytes) noexcept {
  if (!helpers.help_copy(bytes)) return streaming.copy(to, from, bytes);
  const uint64_t done = streaming.begin(to, from, bytes);
  helpers.copy(to + done, from + done, bytes - done, streaming.streams(bytes));
}

}  // namespace

HostExecutor::HostExecutor(RankCore &core, Descriptions &descriptions, SlotMemory &memory, DeviceSide &device,
                           StreamingCopy &streaming, uint64_t credit_window)
    : core_(core),
      descriptions_(descriptions),
      memory_(memory),
      device_(device),
      streaming_(streaming),
      inbox_(core.id.world),
      credit_window_(credit_window),
      tracer_(core.context->steps(), core.id.serial),
      peers_(static_cast<size_t>(core.id.world)),
      sources_(static_cast<size_t>(std::max(core.id.world, 2))),
      watches_slots_(topology::has_devices(core.id.topology)),
      shares_memory_(shares_memory(core.id.topology)) {}

bool HostExecutor::start(Operation &op) noexcept {
  const plan::Plan &p = *op.plan;
  if (!op.run.ring && p.slot_bytes > 0) {
    try {
      if (!memory_.take(op, op.sequence)) return op.run.blocked_on = -1, false;
    } catch (const Error &e) {
      core_.fail_at(op, e.code(), ": " + e.text());
      return false;
    }
  }
  const uint64_t scratch = op.run.scratch ? 0 : std::max<uint64_t>(p.slots, 1) * p.scratch_stride;
  if (scratch > scratch_.size()) scratch_.resize(scratch);
  op.run.at = plan::Cursor(p.host, p.steps, plan::chunks_of(p, op.operands()));
  op.run.told_rank = 0;
  op.run.streams = plan::writes_past_caches(p, op.operands());
  op.run.behind = std::exchange(last_ring_, op.sequence);
  if (memory_.guards() && p.slot_bytes > 0) memory_.let_in(p.host_in_slots ? SlotAccess::Host : SlotAccess::Nobody);
  // The sizes are free to overwrite: all ranks have ended the last operation that used a ring, and only such an operation publishes sizes.
  if (p.pairwise_sizes)
    for (int q = 0; q < core_.id.world; ++q)
      core_.mail->block(q, core_.id.world, core_.cell_bytes)
          .store(op.operands().input_bytes[static_cast<size_t>(q)], std::memory_order_relaxed);
  descriptions_.publish(op, op.run.ring);
  op.run.next_rank = 0;
  op.run.phase = p.pairwise_sizes ? Phase::Comparing : Phase::Running;
  return true;
}

bool HostExecutor::begin(Operation &op) noexcept {
  if (op.run.entered) return true;
  const bool fresh = op.run.phase == Phase::Fresh;
  if (!descriptions_.ended_by_all(fresh ? last_ring_ : op.run.behind, op)) return false;
  if (fresh && !start(op)) return false;
  if (!op.plan->device.empty()) device_.executor()->doors().go(op.sequence);
  if (op.plan->pairwise_sizes) core_.ring_peers();
  return op.run.entered = true;
}

// What the host list of the next operation touches, nothing of this one has: its slots and its scratch lie elsewhere (EarlyCopies), and the
// counters and frames of this one are through. Its gate `go` stays shut: behind it the device fills memory that this operation has.
void HostExecutor::go_ahead(const Operation &op, const OperationQueue &queue) noexcept {
  if (op.run.phase != Phase::Draining || !op.run.entered || shares_memory_ || memory_.guards()) return;
  if (op.plan->uses_links && op.run.next_rank != static_cast<uint32_t>(core_.id.world)) return;
  Operation *const next = queue.second();
  if (!next || !next->run.comes_early.load(std::memory_order_acquire) || next->plan->pairwise_sizes) return;
  if (next->run.phase == Phase::Fresh && !start(*next)) return;
  if (next->run.phase == Phase::Running) walk(*next, op.sequence);
}

Outcome HostExecutor::run(Operation &op) noexcept {
  if (!op.run.entered) {
    const bool ahead = op.run.phase != Phase::Fresh;  // it stands in a step already, whose time has begun
    if (!begin(op)) return ahead ? Outcome::Blocked : tracer_.blocked(op);
    if (!ahead) tracer_.done(op, op.run.blocked_on < 0 ? Traced::WaitsForMemory : Traced::WaitsForEarlier);
  }
  if (op.run.bounce && device_.bounce_on(op)) moved_ = true;
  if (op.run.phase == Phase::Comparing) {
    if (!compare_sizes(op)) return tracer_.blocked(op);
    const bool by_link = op.run.blocked_on >= 0 && !core_.peers[op.run.blocked_on].mail;
    tracer_.done(op, by_link ? Traced::WaitsForData : Traced::WaitsForRank);
    op.run.phase = Phase::Running;
  }
  if (op.run.phase == Phase::Running && !walk(op)) return Outcome::Blocked;
  return drain(op);
}

bool HostExecutor::walk(Operation &op, uint64_t while_not_ended) noexcept {
  for (; !op.run.at.done(); op.run.at.next()) {
    if (while_not_ended != 0 && device_.executor()->signals().ended(while_not_ended)) return false;
    tracer_.begins_step(op);
    if (step(op, op.run.at.step(), op.run.at.chunk()) == Outcome::Blocked) {
      tracer_.tried(op);
      return false;
    }
    tracer_.done_step(op);
  }
  op.run.phase = Phase::Draining;
  op.run.next_rank = 0;
  return true;
}

Outcome HostExecutor::drain(Operation &op) noexcept {
  const plan::Plan &p = *op.plan;
  // The links may still read the user's memory.
  const bool sends = p.uses_links && op.run.next_rank < static_cast<uint32_t>(core_.id.world);
  for (; p.uses_links && op.run.next_rank < static_cast<uint32_t>(core_.id.world); ++op.run.next_rank)
    if (peers_[op.run.next_rank].in_link.load(std::memory_order_acquire) != 0) {
      op.run.blocked_on = static_cast<int>(op.run.next_rank);
      return tracer_.blocked(op);
    }
  if (sends) tracer_.done(op, Traced::WaitsUntilSent);
  if (p.device.empty()) return slots_held(op) ? Outcome::Ended : Outcome::Blocked;
  if (!device_.executor()->signals().ended(op.sequence)) return tracer_.blocked(op), wait_for_device(op);
  tracer_.done(op, Traced::WaitsForDevice);
  if (op.run.bounce) device_.bounce_on(op);  // all that came out is there
  if (!device_.sound(op) || !slots_held(op) || op.run.broken.load(std::memory_order_acquire)) return Outcome::Blocked;
  // The library compares nothing. A rank that came with another call shows here, or did before.
  for (const int q : device_.ranks())
    if (q != core_.id.rank && !descriptions_.same(op, q)) return Outcome::Blocked;
  return Outcome::Ended;
}

// A library waits for a rank of its group that has not come. That rank is named, where this rank can see so.
Outcome HostExecutor::wait_for_device(Operation &op) noexcept {
  op.run.blocked_on = -1;
  for (const int q : device_.ranks()) {
    if (q == core_.id.rank || !core_.peers[q].mail) continue;
    if (!descriptions_.check(op, q)) break;
    if (core_.peers[q].mail->description(op.sequence).sequence.load(std::memory_order_acquire) < op.sequence)
      op.run.blocked_on = q;
  }
  device_.sound(op);
  return Outcome::Blocked;
}

// Called after the last look into a slot. Where a rank failed before, the reason is on its way.
bool HostExecutor::slots_held(Operation &op) noexcept {
  if (!watches_slots_ || (op.plan->slot_bytes == 0 && op.plan->scratch_stride == 0)) return true;
  for (int q = 0; q < core_.id.world; ++q) {
    if (q == core_.id.rank || !core_.peers[q].mail) continue;
    // A plain load could be done before the looks into slots. So this is a read-modify-write.
    if (core_.peers[q].mail->standing.overrun.fetch_add(0, std::memory_order_acq_rel) == 0) continue;
    op.run.blocked_on = q;
    return false;
  }
  return true;
}

// ---- sizes that only two ranks know --------------------------------------------------------------------------------------------------

bool HostExecutor::tells_sizes(const plan::Plan &p, int q) const noexcept {
  return q != core_.id.rank && p.sizes_by_links && !core_.peers[q].mail &&
         std::find(device_.ranks().begin(), device_.ranks().end(), q) != device_.ranks().end();
}

bool HostExecutor::size_of(Operation &op, int q, uint64_t &sent) noexcept {
  if (tells_sizes(*op.plan, q)) {
    plan::Step step;
    step.peer = q;
    if (receive(op, step, sizeof their_size_, reinterpret_cast<std::byte *>(&their_size_)) == Outcome::Blocked) return false;
    sent = their_size_;
    return true;
  }
  Mailbox &mail = *core_.peers[q].mail;
  if (mail.description(op.sequence).sequence.load(std::memory_order_acquire) < op.sequence) {
    op.run.blocked_on = q;
    return false;
  }
  if (!descriptions_.check(op, q)) return false;
  sent = mail.block(core_.id.rank, core_.id.world, core_.cell_bytes).load(std::memory_order_relaxed);
  return true;
}

bool HostExecutor::compare_sizes(Operation &op) noexcept {
  const plan::Plan &p = *op.plan;
  const int world = core_.id.world, rank = core_.id.rank;
  plan::Step step;
  for (; op.run.told_rank < static_cast<uint32_t>(world); ++op.run.told_rank) {
    step.peer = static_cast<int32_t>(op.run.told_rank);
    if (!tells_sizes(p, step.peer)) continue;
    const uint64_t &given = op.operands().input_bytes[op.run.told_rank];
    if (send(op, step, 0, sizeof given, reinterpret_cast<const std::byte *>(&given)) == Outcome::Blocked) return false;
  }
  for (int q = static_cast<int>(op.run.next_rank); q < world; ++q, op.run.next_rank = static_cast<uint32_t>(q)) {
    if (!tells_sizes(p, q) && (q == rank || !core_.peers[q].mail)) continue;
    uint64_t sent = 0;
    if (!size_of(op, q, sent)) return false;
    const uint64_t expected = op.operands().output_bytes[static_cast<size_t>(q)];
    if (sent == expected) continue;
    const uint64_t size = dtype_size(op.call.dtype);
    core_.fail_at(op, Code::Mismatch,
                  formatted(": {} sends {} elements to rank {}, which expects {}; both sides must name the same count",
                            core_.id.text(q), sent / size, core_.id.number(rank), expected / size));
    return false;
  }
  return true;
}

// ---- addresses -----------------------------------------------------------------------------------------------------------------------

std::byte *HostExecutor::ring_of(Operation &op, int rank) noexcept {
  if (rank < 0 || rank == core_.id.rank) return core_.context->arena().base() + op.run.ring;
  const PeerRank &p = core_.peers[rank];
  PeerPlan &mine = peers_[rank];
  if (mine.ring_sequence != op.sequence) {
    const Description &d = p.mail->description(op.sequence);
    const uint64_t offset = d.ring.load(std::memory_order_relaxed);
    const uint64_t limit = p.process ? p.process->arena.size() : core_.context->arena().bytes();
    const uint64_t need = op.plan->slots * op.plan->slot_bytes;
    if (d.sequence.load(std::memory_order_acquire) != op.sequence || offset < link::Arena::kHeader || offset > limit ||
        need > limit - offset) {
      core_.fail_at(op, Code::Internal, formatted(": {} announced a ring outside its shared memory", core_.id.text(rank)));
      return nullptr;
    }
    mine.ring_sequence = op.sequence;
    mine.ring = p.arena + offset;
  }
  return mine.ring;
}

std::byte *HostExecutor::address(Operation &op, const plan::Span &span, uint32_t c) noexcept {
  const uint64_t offset = plan::span_offset(*op.plan, span, c, op.operands());
  switch (span.memory) {
    case Memory::Input: return const_cast<std::byte *>(op.call.input) + offset;
    case Memory::Output: return op.call.output + offset;
    case Memory::Scratch:
      return (op.run.scratch ? core_.context->arena().base() + op.run.scratch : scratch_.data()) + offset;
    case Memory::Device: return nullptr;  // the device list alone has memory of the device
    case Memory::Ring: break;
  }
  std::byte *ring = ring_of(op, span.rank);
  return ring ? ring + offset : nullptr;
}

// ---- steps ---------------------------------------------------------------------------------------------------------------------------

Outcome HostExecutor::step(Operation &op, const plan::Step &step, uint32_t c) noexcept {
  const bool sized = step.kind != StepKind::Post && step.kind != StepKind::Wait && step.kind != StepKind::Taken;
  uint64_t bytes = 0;
  if (sized || step.guarded) {
    bytes = plan::extent_bytes(step.extent, c, op.operands());
    if (bytes == 0) return Outcome::Moved;
  }
  const uint64_t wide = step.partial ? bytes / dtype_size(op.call.dtype) * dtype_size(accumulator(op.call.dtype)) : bytes;
  switch (step.kind) {
    case StepKind::Wait: return wait(op, step, step.mul * c + step.add);
    case StepKind::Post: return post(op, step, step.mul * c + step.add), Outcome::Moved;
    case StepKind::Move: return move(op, step, c, bytes, wide);
    case StepKind::Reduce: return reduce(op, step, c, bytes, wide);
    case StepKind::Send: {
      const std::byte *from = address(op, op.plan->sources[step.source], c);
      return from ? send(op, step, c, wide, from) : Outcome::Blocked;
    }
    case StepKind::Taken: return wait_until_sent(op, c);
    case StepKind::Recv: {
      std::byte *to = address(op, step.dst, c);
      return to ? receive(op, step, wide, to) : Outcome::Blocked;
    }
    case StepKind::Ccl: break;
  }
  core_.fail(Code::Internal, formatted("{}: the plan has a step that the host cannot run", core_.describe(op)), Tell::Peers);
  return Outcome::Blocked;
}

Outcome HostExecutor::wait(Operation &op, const plan::Step &step, int64_t value) noexcept {
  if (value <= 0) return Outcome::Moved;
  const uint64_t want = (op.sequence << plan::kValueBits) + static_cast<uint64_t>(value);
  if (step.counter >= plan::kCounters) {
    if (device_.executor()->signals().posted(step.counter) < want) return wait_for_device(op);
    return device_.sound(op) ? Outcome::Moved : Outcome::Blocked;
  }
  if (core_.peers[step.peer].mail->counters[step.counter].value.load(std::memory_order_acquire) < want) {
    op.run.blocked_on = step.peer;
    return Outcome::Blocked;
  }
  return descriptions_.check(op, step.peer) ? Outcome::Moved : Outcome::Blocked;
}

void HostExecutor::post(Operation &op, const plan::Step &step, int64_t value) noexcept {
  const uint64_t now = (op.sequence << plan::kValueBits) + static_cast<uint64_t>(value);
  if (step.counter >= plan::kCounters) return device_.executor()->doors().ready(now);
  core_.mail->counters[step.counter].value.store(now, std::memory_order_release);
  core_.ring_peers();
}

Outcome HostExecutor::move(Operation &op, const plan::Step &step, uint32_t c, uint64_t bytes, uint64_t wide) noexcept {
  std::byte *to = address(op, step.dst, c);
  const std::byte *from = address(op, op.plan->sources[step.source], c);
  if (!to || !from) return Outcome::Blocked;
  if (step.scaled) scale(to, from, bytes, op.call);
  else if (step.dst.memory == Memory::Ring) copy_into_slot(core_.context->helpers(), streaming_, to, from, wide);
  else if (to != from) core_.context->helpers().copy(to, from, wide, step.stream && op.run.streams);
  return Outcome::Moved;
}

Outcome HostExecutor::reduce(Operation &op, const plan::Step &step, uint32_t c, uint64_t bytes, uint64_t wide) noexcept {
  const plan::Plan &p = *op.plan;
  for (uint32_t i = 0; i < step.sources; ++i) {
    const plan::Span &s = p.sources[step.source + i];
    sources_[i] = {address(op, s, c), s.partial, s.weight};
    if (!sources_[i].data) return Outcome::Blocked;
  }
  reduce::LocalReduction f{
      op.call.dtype, op.call.op, {sources_.data(), step.sources}, {p.group_ends.data() + step.group, step.groups}};
  f.dst = address(op, step.dst, c);
  f.copy = step.has_copy ? address(op, step.copy, c) : nullptr;
  f.partial = step.partial;
  f.divisor = step.divisor;
  f.stream_copy = step.stream && op.run.streams;
  f.stream_dst = step.dst.memory == Memory::Ring && streaming_.streams(wide);
  core_.context->helpers().reduce(f, bytes / dtype_size(op.call.dtype));
  return Outcome::Moved;
}

Outcome HostExecutor::wait_until_sent(Operation &op, uint32_t c) noexcept {
  const plan::Plan &p = *op.plan;
  if (op.in_slot[c % std::max(p.slots, 1u)].load(std::memory_order_acquire) == 0) return Outcome::Moved;
  for (const auto &s : p.steps)
    if (s.kind == StepKind::Send && peers_[s.peer].in_link.load(std::memory_order_relaxed) != 0) op.run.blocked_on = s.peer;
  return Outcome::Blocked;
}

Outcome HostExecutor::send(Operation &op, const plan::Step &step, uint32_t c, uint64_t bytes,
                           const std::byte *data) noexcept {
  PeerRank &p = core_.peers[step.peer];
  PeerPlan &mine = peers_[step.peer];
  if (!p.send_credit.take(bytes)) {
    op.run.blocked_on = step.peer;
    return Outcome::Blocked;
  }
  link::Outgoing *f = take_frame();
  f->header = link::FrameHeader{};
  f->header.kind = link::FrameKind::PlanData;
  f->header.dtype = static_cast<uint8_t>(op.call.dtype);
  f->header.member = p.their_index;
  f->header.epoch = core_.id.epoch;
  f->header.source = static_cast<uint32_t>(core_.id.rank);
  f->header.tag = static_cast<int32_t>(op.sequence & 0x7fffffff);
  f->header.id = mine.frames_out++;
  f->header.total = bytes;
  f->header.digest = op.digest;
  f->data = data;
  f->pending = &mine.in_link;
  f->finished = give_frame;
  mine.in_link.fetch_add(1, std::memory_order_relaxed);
  f->also = nullptr;
  if (op.plan->waits_for_links) {
    f->also = &op.in_slot[c % std::max(op.plan->slots, 1u)];
    f->also->fetch_add(1, std::memory_order_relaxed);
  }
  p.link->post(*f);
  moved_ = true;
  return Outcome::Moved;
}

Outcome HostExecutor::receive(Operation &op, const plan::Step &step, uint64_t bytes, std::byte *to) noexcept {
  if (inbox_.take(step.peer, bytes, op.digest, to, op.sequence) == PlanInbox::Taken::Yes) {
    core_.consumed(step.peer, bytes);
    return Outcome::Moved;
  }
  op.run.blocked_on = step.peer;
  return Outcome::Blocked;
}

link::Accept HostExecutor::accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) {
  if (core_.failed()) return link::Accept::Drop;
  return inbox_.accept(h, since_ns, now_ns(), std::max<uint64_t>(credit_window_, uint64_t{1} << 32), to);
}

}  // namespace isthmus::collective
