#include "collective/one_hop.hpp"

#include "base/copy.hpp"

namespace isthmus::collective {
namespace {

struct Pattern {
  bool posts, reads_all, reads_root;
};

Pattern pattern(const Operation &op, int rank) {
  const bool root = rank == op.call.root;
  const CollectiveTraits &kind = traits(op.call.collective);
  if (kind.writes == Who::Root) return {true, root, false};
  if (kind.reads == Who::Root) return {root, false, !root};
  return {true, true, false};
}

void move(std::byte *to, const std::byte *from, uint64_t bytes) {
  if (to != from) copy_bytes(to, from, bytes);
}

}  // namespace

void scale(std::byte *to, const std::byte *from, uint64_t bytes, const Call &c) noexcept {
  const uint64_t count = bytes / dtype_size(c.dtype);
  if (is_integer(c.dtype)) reduce::scale_integers(to, from, count, c.dtype, c.factor);
  else reduce::scale(to, from, count, c.dtype, c.scale);
}

OneHop::OneHop(RankCore &core, Descriptions &descriptions, DeviceSide &device, StreamingCopy &streaming)
    : core_(core),
      descriptions_(descriptions),
      device_(device),
      streaming_(streaming),
      tracer_(core.context->steps(), core.id.serial),
      sources_(static_cast<size_t>(std::max(core.id.world, 2))) {
  for (const auto &g : core.id.topology.islands) {
    for (const int r : g.ranks) order_.push_back(r);
    group_ends_.push_back(static_cast<uint32_t>(order_.size()));
  }
}

bool OneHop::heard_all(const Operation &op) const noexcept { return pattern(op, core_.id.rank).reads_all; }

const std::byte *OneHop::payload(const Operation &op, int q) const noexcept {
  return (q == core_.id.rank ? core_.mail : core_.peers[q].mail)->cell(op.sequence, core_.cell_bytes).payload;
}

uint64_t OneHop::place(const Operation &op, std::span<const uint64_t> displ, size_t block) noexcept {
  return op.plan ? block * op.call.bytes : displ[block];
}

OneHop::Places OneHop::places(const Operation &op) const noexcept {
  if (!op.plan) return {op.call.input, op.call.output};
  std::byte *const scratch = core_.context->arena().base() + op.run.scratch;
  return {scratch, scratch + op.plan->output_at.value_or(0)};
}

void OneHop::post(const Operation &op) noexcept {
  Cell &cell = core_.mail->cell(op.sequence, core_.cell_bytes);
  const Call &c = op.call;
  const std::byte *const input = places(op).input;
  std::byte *to = cell.payload;
  uint64_t bytes = 0;
  const CollectiveTraits &kind = traits(c.collective);
  const bool scaled = kind.reduces && c.op == RedOp::PremulSum;
  switch (kind.input) {
    case Blocks::None: break;
    case Blocks::One: bytes = kind.varying ? op.operands().input_bytes[0] : c.bytes; break;
    case Blocks::OnePerRank:  // packed
      for (uint32_t b = 0; b < op.blocks.input; ++b) {
        const auto o = op.operands();
        streaming_.copy(to, input + place(op, o.input_displ, b), o.input_bytes[b]);
        to += o.input_bytes[b];
      }
      if (scaled) scale(cell.payload, cell.payload, static_cast<uint64_t>(to - cell.payload), c);
  }
  if (bytes) {
    if (scaled) scale(to, input, bytes, c);
    else streaming_.copy(to, input, bytes);
  }
  cell.digest.store(op.digest, std::memory_order_relaxed);
  cell.sequence.store(op.sequence, std::memory_order_release);
}

void OneHop::reduce(const Operation &op, uint64_t offset, uint64_t bytes, std::byte *to, const std::byte *own) noexcept {
  if (bytes == 0) return;
  const Call &c = op.call;
  for (int i = 0; i < core_.id.world; ++i) {
    const int q = order_[i];
    sources_[i] = {q == core_.id.rank && c.op != RedOp::PremulSum ? own : payload(op, q) + offset, false};
  }
  reduce::LocalReduction f{c.dtype, c.op, {sources_.data(), static_cast<size_t>(core_.id.world)}, group_ends_};
  f.dst = to;
  f.divisor = plan::divisor_of(c.op, core_.id.world);
  reduce::reduce(f, bytes / dtype_size(c.dtype));
}

void OneHop::consume(const Operation &op) noexcept {
  const Call &c = op.call;
  const int rank = core_.id.rank;
  const auto mine = static_cast<size_t>(rank), world = static_cast<size_t>(core_.id.world);
  const auto o = op.operands();
  const CollectiveTraits &kind = traits(c.collective);
  const auto [input, output] = places(op);
  if (!writes_output(c.collective, rank, c.root) || (op.plan && !op.plan->output_at)) return;
  const auto before_mine = [&] {  // where this rank's block begins in a cell; every rank knows all counts
    uint64_t offset = 0;
    for (int b = 0; b < rank; ++b) offset += o.input_bytes[b];
    return offset;
  };
  if (kind.reduces) {
    if (kind.input == Blocks::One) reduce(op, 0, c.bytes, output, input);
    else reduce(op, before_mine(), o.input_bytes[rank], output, input + place(op, o.input_displ, mine));
  } else if (is_exchange(c.collective)) {
    const uint64_t offset = static_cast<uint64_t>(rank) * c.bytes;
    for (size_t q = 0; q < world; ++q)
      move(output + place(op, o.output_displ, q), payload(op, static_cast<int>(q)) + offset, c.bytes);
  } else if (kind.input == Blocks::OnePerRank) {
    if (rank == c.root) move(output, input + place(op, o.input_displ, mine), o.input_bytes[rank]);
    else move(output, payload(op, c.root) + before_mine(), o.input_bytes[rank]);
  } else if (kind.output == Blocks::OnePerRank) {
    for (size_t q = 0; q < world; ++q)
      move(output + place(op, o.output_displ, q), q == mine ? input : payload(op, static_cast<int>(q)), o.output_bytes[q]);
  } else {
    move(output, rank == c.root ? input : payload(op, c.root), c.bytes);
  }
}

bool OneHop::begin(Operation &op) noexcept {
  if (op.run.phase != Phase::Fresh) return true;
  if (op.plan && op.run.scratch == 0) return op.run.blocked_on = -1, false;  // a failure came before the device was given it
  if (pattern(op, core_.id.rank).posts && op.sequence > 2 && !descriptions_.ended_by_all(op.sequence - 2, op)) return false;
  descriptions_.publish(op, 0);
  if (op.plan) device_.executor()->doors().go(op.sequence);
  op.run.phase = Phase::Running;
  return true;
}

bool OneHop::say(Operation &op) noexcept {
  const int rank = core_.id.rank;
  const Pattern p = pattern(op, rank);
  if (op.plan && reads_input(op.call.collective, rank, op.call.root)) {
    const bool staged = device_.executor()->signals().posted(plan::kStaged) >= value_within(op.sequence, 1);
    // Asked behind the signal: a stream that was stopped may signal without having copied.
    if (!device_.sound(op) || !staged) {
      op.run.blocked_on = -1;
      return false;
    }
  }
  if (p.posts) {
    post(op);
    core_.ring_peers();
  }
  op.run.phase = Phase::Posted;
  op.run.next_rank = p.reads_all    ? 0
                     : p.reads_root ? static_cast<uint32_t>(op.call.root)
                                    : static_cast<uint32_t>(core_.id.world);
  return true;
}

bool OneHop::land(Operation &op) noexcept {
  if (!op.plan) return true;
  op.run.blocked_on = -1;
  const bool ended = device_.executor()->signals().ended(op.sequence);
  return device_.sound(op) && ended && !op.run.broken.load(std::memory_order_acquire);
}

Outcome OneHop::run(Operation &op) noexcept {
  const Pattern p = pattern(op, core_.id.rank);
  const auto world = static_cast<uint32_t>(core_.id.world);
  if (!begin(op)) return tracer_.blocked(op);
  tracer_.done(op, Traced::WaitsForEarlier);
  if (op.run.phase == Phase::Running && !say(op)) return tracer_.blocked(op);
  if (op.run.phase == Phase::Draining) return finish(op);
  if (op.run.blocked_on < 0) tracer_.done(op, Traced::WaitsForDevice);
  const uint32_t end = p.reads_all ? world : op.run.next_rank + (p.reads_root ? 1u : 0u);
  for (uint32_t q = op.run.next_rank; q < end && q < world; ++q) {
    if (static_cast<int>(q) == core_.id.rank) continue;
    const Cell &cell = core_.peers[q].mail->cell(op.sequence, core_.cell_bytes);
    if (cell.sequence.load(std::memory_order_acquire) != op.sequence) {
      if (p.reads_all) op.run.next_rank = q;
      op.run.blocked_on = static_cast<int>(q);
      return tracer_.blocked(op);
    }
    if ((cell.digest.load(std::memory_order_relaxed) != op.digest || descriptions_.is_after_unchecked(op)) &&
        !descriptions_.check(op, static_cast<int>(q)))
      return Outcome::Blocked;
  }
  tracer_.done(op, Traced::WaitsForRank);
  if (op.call.bytes != 0) tracer_.tried(op);
  consume(op);
  tracer_.done(op, is_reduction(op.call.collective) ? Traced::Reduce : Traced::Copy, -1, nullptr, 0, op.call.bytes);
  if (p.reads_all) descriptions_.heard_from_all(op.sequence);
  if (op.plan && op.plan->output_at) device_.executor()->doors().ready(value_within(op.sequence, 1));
  op.run.phase = Phase::Draining;
  return finish(op);
}

Outcome OneHop::finish(Operation &op) noexcept {
  if (!land(op)) return tracer_.blocked(op);
  tracer_.done(op, Traced::WaitsForDevice);
  return Outcome::Ended;
}

}  // namespace isthmus::collective
