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

using plan::Collective;

struct Pattern {
  bool posts, reads_all, reads_root;
};

Pattern pattern(const Op &op, int rank) {
  const bool root = rank == op.call.root;
  switch (op.call.collective) {
    case Collective::Reduce:
    case Collective::Gather:
    case Collective::GatherV: return {true, root, false};
    case Collective::Broadcast:
    case Collective::Scatter:
    case Collective::ScatterV: return {root, false, !root};
    default: return {true, true, false};
  }
}

}  // namespace

bool Member::all_done(uint64_t sequence, Op *op) noexcept {
  if (seen_by_all_ >= sequence) return true;
  for (int q = 0; q < world_; ++q) {
    if (q == rank_ || !peers_[q].mail) continue;
    if (peers_[q].mail->done.value.load(std::memory_order_acquire) < sequence) return op->blocked_on = q, false;
  }
  seen_by_all_ = sequence;
  return true;
}

void Member::publish(Op *op, uint64_t ring) noexcept {
  Description &d = mail_->description(op->sequence);
  // `sequence` last: a reader that looks early sees either the old description or, once the number fits, all of the new one.
  d.digest.store(op->digest, std::memory_order_relaxed);
  d.bytes.store(op->call.bytes, std::memory_order_relaxed);
  d.ring.store(ring, std::memory_order_relaxed);
  d.what.store(what(op->call), std::memory_order_relaxed);
  d.sequence.store(op->sequence, std::memory_order_release);
}

void Member::post_cell(Op *op) noexcept {
  Cell &cell = mail_->cell(op->sequence, cell_bytes_);
  const Call &c = op->call;
  std::byte *to = cell.payload;
  uint64_t bytes = 0;
  switch (c.collective) {
    case Collective::Barrier: break;
    case Collective::AllReduce:
    case Collective::Reduce:
    case Collective::Broadcast:
    case Collective::AllGather:
    case Collective::Gather: bytes = c.bytes; break;
    case Collective::AllGatherV:
    case Collective::GatherV: bytes = op->operands().in_bytes[0]; break;
    default:  // blocks for every rank, packed
      for (uint32_t b = 0; b < op->in_blocks; ++b) {
        const auto o = op->operands();
        hand_over_.copy(to, c.in + o.in_displ[b], o.in_bytes[b]);
        to += o.in_bytes[b];
      }
      if (c.op == RedOp::PremulSum && c.collective != Collective::AllToAll && c.collective != Collective::Scatter &&
          c.collective != Collective::ScatterV)
        scale(cell.payload, cell.payload, static_cast<uint64_t>(to - cell.payload), c);
  }
  if (bytes) {
    if (c.op == RedOp::PremulSum && (c.collective == Collective::AllReduce || c.collective == Collective::Reduce))
      scale(to, c.in, bytes, c);
    else hand_over_.copy(to, c.in, bytes);
  }
  cell.digest.store(op->digest, std::memory_order_relaxed);
  cell.sequence.store(op->sequence, std::memory_order_release);
}

void Member::consume_cells(Op *op) noexcept {
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
  switch (c.collective) {
    case Collective::AllReduce: fold(0, c.bytes, c.out, c.in); break;
    case Collective::Reduce:
      if (rank_ == c.root) fold(0, c.bytes, c.out, c.in);
      break;
    case Collective::ReduceScatter:
    case Collective::ReduceScatterV: {
      uint64_t offset = 0;
      for (int b = 0; b < rank_; ++b) offset += o.in_bytes[b];
      fold(offset, o.in_bytes[rank_], c.out, c.in + o.in_displ[rank_]);
      break;
    }
    case Collective::Broadcast: move(c.out, rank_ == c.root ? c.in : payload(c.root), c.bytes); break;
    case Collective::AllGather:
    case Collective::AllGatherV:
    case Collective::Gather:
    case Collective::GatherV:
      if ((c.collective == Collective::Gather || c.collective == Collective::GatherV) && rank_ != c.root) break;
      for (int q = 0; q < world_; ++q) move(c.out + o.out_displ[q], q == rank_ ? c.in : payload(q), o.out_bytes[q]);
      break;
    case Collective::AllToAll: {
      const uint64_t offset = static_cast<uint64_t>(rank_) * c.bytes;
      for (int q = 0; q < world_; ++q) move(c.out + o.out_displ[q], payload(q) + offset, c.bytes);
      break;
    }
    case Collective::Scatter:
    case Collective::ScatterV: {
      if (rank_ == c.root) {
        move(c.out, c.in + o.in_displ[rank_], o.in_bytes[rank_]);
        break;
      }
      uint64_t offset = 0;  // of my block in root's cell: blocks are packed; every rank knows all counts
      for (int b = 0; b < rank_; ++b) offset += o.in_bytes[b];
      move(c.out, payload(c.root) + offset, o.in_bytes[rank_]);
      break;
    }
    default: break;
  }
}

Member::Outcome Member::one_hop(Op *op) noexcept {
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
void Member::note_unchecked(const Op &op) noexcept {
  const bool heard_all = !op.plan && pattern(op, rank_).reads_all;
  unchecked_ = heard_all ? 0 : op.sequence;
  unchecked_digest_ = op.digest;
}

}  // namespace isthmus::engine
