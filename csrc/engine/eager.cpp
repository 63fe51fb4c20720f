// One-hop operations between ranks that share memory: every rank that has something to say writes it into its cell, every rank
// that needs it reads all cells it needs and combines them itself. Two cells a rank, used in turn.
//
// Reuse: the cell of operation s was last used by s-2, so all its readers must have ended s-2 first. Where an operation reads from
// everybody, seeing a peer's cell s proves that the peer has ended s-1, so in a run of such operations the check costs nothing.
#include <cstring>

#include "engine/member.hpp"
#include "base/copy.hpp"

namespace isthmus::engine {
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

}  // namespace

bool Member::all_done(uint64_t sequence, Operation *op) noexcept {
  if (seen_by_all_ >= sequence) return true;
  for (int q = 0; q < world_; ++q) {
    if (q == rank_ || !peers_[q].mail) continue;
    if (peers_[q].mail->done.value.load(std::memory_order_acquire) < sequence) return op->blocked_on = q, false;
  }
  seen_by_all_ = sequence;
  return true;
}

void Member::publish(Operation *op, uint64_t ring) noexcept {
  Description &d = mail_->description(op->sequence);
  // `sequence` last: a reader that looks early sees either the old description or, once the number fits, all of the new one.
  d.digest.store(op->digest, std::memory_order_relaxed);
  d.bytes.store(op->call.bytes, std::memory_order_relaxed);
  d.ring.store(ring, std::memory_order_relaxed);
  d.what.store(what(op->call), std::memory_order_relaxed);
  d.sequence.store(op->sequence, std::memory_order_release);
}

void Member::post_cell(Operation *op) noexcept {
  Cell &cell = mail_->cell(op->sequence, cell_bytes_);
  const Call &c = op->call;
  std::byte *to = cell.payload;
  uint64_t bytes = 0;
  const CollectiveTraits &kind = traits(c.collective);
  const bool scaled = kind.reduces && c.op == RedOp::PremulSum;
  switch (kind.in) {
    case Blocks::None: break;
    case Blocks::One: bytes = kind.varying ? op->operands().in_bytes[0] : c.bytes; break;
    case Blocks::OnePerRank:  // packed
      for (uint32_t b = 0; b < op->in_blocks; ++b) {
        const auto o = op->operands();
        hand_over_.copy(to, c.in + o.in_displ[b], o.in_bytes[b]);
        to += o.in_bytes[b];
      }
      if (scaled) scale(cell.payload, cell.payload, static_cast<uint64_t>(to - cell.payload), c);
  }
  if (bytes) {
    if (scaled) scale(to, c.in, bytes, c);
    else hand_over_.copy(to, c.in, bytes);
  }
  cell.digest.store(op->digest, std::memory_order_relaxed);
  cell.sequence.store(op->sequence, std::memory_order_release);
}

void Member::consume_cells(Operation *op) noexcept {
  const Call &c = op->call;
  const auto payload = [&](int q) -> const std::byte * {
    return (q == rank_ ? mail_ : peers_[q].mail)->cell(op->sequence, cell_bytes_).payload;
  };
  const auto o = op->operands();
  const auto move = [](std::byte *to, const std::byte *from, uint64_t n) {
    if (to != from) copy_bytes(to, from, n);
  };
  const auto fold = [&](uint64_t offset, uint64_t bytes, std::byte *to, const std::byte *own) {
    if (bytes == 0) return;
    for (int i = 0; i < world_; ++i) {
      const int q = fold_order_[i];
      sources_[i] = {q == rank_ && c.op != RedOp::PremulSum ? own : payload(q) + offset, false};
    }
    reduce::Fold f{c.dtype, c.op, {sources_.data(), static_cast<size_t>(world_)}, group_ends_};
    f.dst = to;
    f.divisor = c.op == RedOp::Avg ? static_cast<uint64_t>(world_) : 1;
    reduce::fold(f, bytes / dtype_size(c.dtype));
  };
  const CollectiveTraits &kind = traits(c.collective);
  if (!writes_output(c.collective, rank_, c.root)) return;
  const auto before_mine = [&] {  // where this rank's block begins in a cell; every rank knows all counts
    uint64_t offset = 0;
    for (int b = 0; b < rank_; ++b) offset += o.in_bytes[b];
    return offset;
  };
  if (kind.reduces) {
    if (kind.in == Blocks::One) fold(0, c.bytes, c.out, c.in);
    else fold(before_mine(), o.in_bytes[rank_], c.out, c.in + o.in_displ[rank_]);
  } else if (is_exchange(c.collective)) {
    const uint64_t offset = static_cast<uint64_t>(rank_) * c.bytes;
    for (int q = 0; q < world_; ++q) move(c.out + o.out_displ[q], payload(q) + offset, c.bytes);
  } else if (kind.in == Blocks::OnePerRank) {
    if (rank_ == c.root) move(c.out, c.in + o.in_displ[rank_], o.in_bytes[rank_]);
    else move(c.out, payload(c.root) + before_mine(), o.in_bytes[rank_]);
  } else if (kind.out == Blocks::OnePerRank) {
    for (int q = 0; q < world_; ++q) move(c.out + o.out_displ[q], q == rank_ ? c.in : payload(q), o.out_bytes[q]);
  } else {
    move(c.out, rank_ == c.root ? c.in : payload(c.root), c.bytes);
  }
}

Member::Outcome Member::one_hop(Operation *op) noexcept {
  const Pattern p = pattern(*op, rank_);
  if (op->phase == Phase::Fresh) {
    if (p.posts && op->sequence > 2 && !all_done(op->sequence - 2, op)) return Outcome::Blocked;
    publish(op, 0);
    if (p.posts) {
      post_cell(op);
      for (int q = 0; q < world_; ++q)
        if (q != rank_) peers_[q].bell->ring();
    }
    op->phase = Phase::Posted;
    op->next_rank = p.reads_all ? 0 : p.reads_root ? static_cast<uint32_t>(op->call.root) : static_cast<uint32_t>(world_);
  }
  const uint32_t end = p.reads_all ? static_cast<uint32_t>(world_) : op->next_rank + (p.reads_root ? 1u : 0u);
  for (uint32_t q = op->next_rank; q < end && q < static_cast<uint32_t>(world_); ++q) {
    if (static_cast<int>(q) == rank_) continue;
    const Cell &cell = peers_[q].mail->cell(op->sequence, cell_bytes_);
    if (cell.sequence.load(std::memory_order_acquire) != op->sequence) {
      if (p.reads_all) op->next_rank = q;
      op->blocked_on = static_cast<int>(q);
      return Outcome::Blocked;
    }
    if ((cell.digest.load(std::memory_order_relaxed) != op->digest || unchecked_ + 1 == op->sequence) &&
        !check_peer(op, static_cast<int>(q)))
      return Outcome::Blocked;
  }
  consume_cells(op);
  if (p.reads_all && seen_by_all_ + 1 < op->sequence) seen_by_all_ = op->sequence - 1;
  return Outcome::Ended;
}

// An operation that ends without having heard from everybody may have met another one elsewhere (a broadcast from another root):
// the next operation compares its description too.
void Member::note_unchecked(const Operation &op) noexcept {
  const bool heard_all = !op.plan && pattern(op, rank_).reads_all;
  unchecked_ = heard_all ? 0 : op.sequence;
  unchecked_digest_ = op.digest;
}

}  // namespace isthmus::engine
