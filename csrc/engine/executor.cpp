// The executor of plans: runs the host list of one rank, step by step, and knows nothing of collectives. A step that cannot go on
// returns Blocked; the next try begins at the same step.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "base/log.hpp"
#include "base/copy.hpp"
#include "base/handles.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {

using plan::Memory;
using plan::StepKind;

// Ranks in the same memory must have ended the last operation before its ring may be written again (plan.hpp, entry rule).
bool Member::start_plan(Operation *op) noexcept {
  const plan::Plan &p = *op->plan;
  if (!all_done(last_ring_, op)) return false;
  if (!op->ring && p.slot_bytes > 0) {
    try {
      if (!take_room(op)) return op->blocked_on = -1, false;
    } catch (const Error &e) {
      fail_at(*op, e.code(), ": " + e.text());
      return false;
    }
  }
  const uint64_t scratch = op->scratch ? 0 : std::max<uint64_t>(p.slots, 1) * p.scratch_stride;
  if (scratch > scratch_.size()) scratch_.resize(scratch);
  op->at = plan::Cursor(p.host, p.steps, plan::chunks_of(p, op->operands()));
  op->told_rank = 0;
  const auto received = op->operands().out_bytes;
  op->streams = !is_varying(op->call.collective) ||
                std::accumulate(received.begin(), received.end(), uint64_t{0}) >= p.request.stream_bytes;
  last_ring_ = op->sequence;
  if (!guarded_.empty() && p.slot_bytes > 0) let_in(p.host_in_slots);
  // Free to overwrite: everybody has ended the last operation that used a ring, and only such a one publishes sizes.
  if (p.pairwise_sizes)
    for (int q = 0; q < world_; ++q)
      mail_->block(q, world_, cell_bytes_).store(op->operands().in_bytes[static_cast<size_t>(q)], std::memory_order_relaxed);
  publish(op, op->ring);
  if (!p.device.empty()) executor_->go(op->sequence);
  if (p.pairwise_sizes)
    for (int q = 0; q < world_; ++q)
      if (q != rank_ && peers_[q].bell) peers_[q].bell->ring();
  op->next_rank = 0;
  return true;
}

void Member::let_in(bool host) noexcept {
  for (const std::span<std::byte> slots : guarded_)
    if (::mprotect(slots.data(), slots.size(), host ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to slots cannot be changed ({})", std::strerror(errno));
}

constexpr int64_t kAskAgainNs = 5'000'000, kPatientNs = 50'000'000;

// The slots of an operation and, where its device copies through it, scratch: false where what there is has been lent to others, which will
// give it back. Throws Error(Resource) where it would not do even then.
bool Member::take_room(Operation *op) {
  const plan::Plan &p = *op->plan;
  // Where there was none, others are asked again when one of them has given some back, or after a while.
  const uint64_t given_back = context_->staging().given_back();
  const int64_t now = op->short_of_room ? now_ns() : 0;
  if (op->short_of_room && std::exchange(op->given_back, given_back) == given_back && now < op->ask_again_ns) return false;
  op->ask_again_ns = now + kAskAgainNs;
  const uint64_t slots = p.slots * p.slot_bytes;
  const bool fixed = slots <= fixed_ring_bytes_;
  const uint64_t scratch = p.device.empty() ? 0 : std::max<uint64_t>(p.slots, 1) * p.scratch_stride;
  if (fixed) op->ring = fixed_ring_;
  if (scratch == 0 && (fixed || slots == 0)) return true;
  const auto take = [&] {
    const Rings::Room room = rings_.take(fixed ? 0 : slots, scratch);
    if (!fixed) op->ring = room.slots;
    op->scratch = room.scratch;
    op->lent = true;
  };
  try {
    take();
    return true;
  } catch (const Error &e) {
    if (e.code() != Code::Resource) throw;
  }
  const bool others = context_->staging().is_lent();
  context_->staging().give_idle();
  try {
    take();
    return true;
  } catch (const Error &e) {
    if (e.code() != Code::Resource || !others) throw;
  }
  // Ranks that lend in another order may each wait for what the other has. Only a device's slots have to be pinned.
  if (op->short_of_room && p.device.empty() && now - op->short_since_ns > kPatientNs) {
    op->ring = rings_.take_beyond(slots).slots;
    op->lent = true;
    if (!context_->staging().note_lost(StagingBook::kBeyondStaging))
      ISTHMUS_WARN(
          "{}: its slots lie beyond the staging memory of the process, all of which operations in flight have; it holds for "
          "others like it (a larger ISTHMUS_STAGING_BYTES has room for them)",
          describe(*op));
    return true;
  }
  if (!std::exchange(op->short_of_room, true)) {
    op->given_back = given_back;
    op->short_since_ns = now_ns();
    context_->staging().want_room(1);
    ISTHMUS_INFO("{}: it waits for staging memory that other operations have (ISTHMUS_STAGING_BYTES)", describe(*op));
  }
  return false;
}

// By another member, which finds no room.
bool Member::give_idle_staging() noexcept {
  if (failed()) return false;  // a device may still come to it
  const bool spares = pool_.free_spares();
  return rings_.give_idle() || spares;
}

bool Member::read_by_all(uint64_t sequence) const noexcept {
  for (int q = 0; q < world_; ++q)
    if (q != rank_ && peers_[q].mail && peers_[q].mail->done.value.load(std::memory_order_acquire) < sequence) return false;
  return true;
}

// A rank of its group that has not come is what a library waits for, where that can be seen from here.
Member::Outcome Member::wait_for_device(Operation *op) noexcept {
  op->blocked_on = -1;
  for (const int q : island_ranks_) {
    if (q == rank_ || !peers_[q].mail) continue;
    if (!check_peer(op, q)) break;
    if (peers_[q].mail->description(op->sequence).sequence.load(std::memory_order_acquire) < op->sequence)
      op->blocked_on = q;
  }
  island_sound(op);
  return Outcome::Blocked;
}

// A failed call is noted before what comes after it on the stream is signalled.
bool Member::island_sound(Operation *op) noexcept {
  if (!executor_->failed()) return true;
  const Status s = executor_->status();
  fail_at(*op, s.code, ": " + s.text);
  return false;
}

bool Member::tells_sizes(const plan::Plan &p, int q) const noexcept {
  return q != rank_ && p.sizes_by_links && !peers_[q].mail &&
         std::find(island_ranks_.begin(), island_ranks_.end(), q) != island_ranks_.end();
}

bool Member::compare_sizes(Operation *op) noexcept {
  const plan::Plan &p = *op->plan;
  plan::Step step;
  for (; op->told_rank < static_cast<uint32_t>(world_); ++op->told_rank) {
    step.peer = static_cast<int32_t>(op->told_rank);
    if (!tells_sizes(p, step.peer)) continue;
    const uint64_t &given = op->operands().in_bytes[op->told_rank];
    if (send_step(op, step, 0, sizeof given, reinterpret_cast<const std::byte *>(&given)) == Outcome::Blocked) return false;
  }
  for (int q = static_cast<int>(op->next_rank); q < world_; ++q, op->next_rank = static_cast<uint32_t>(q)) {
    uint64_t sent = 0;
    if (tells_sizes(p, q)) {
      step.peer = q;
      if (recv_step(op, step, sizeof their_size_, reinterpret_cast<std::byte *>(&their_size_)) == Outcome::Blocked)
        return false;
      sent = their_size_;
    } else {
      if (q == rank_ || !peers_[q].mail) continue;
      if (peers_[q].mail->description(op->sequence).sequence.load(std::memory_order_acquire) < op->sequence) {
        op->blocked_on = q;
        return false;
      }
      if (!check_peer(op, q)) return false;
      sent = peers_[q].mail->block(rank_, world_, cell_bytes_).load(std::memory_order_relaxed);
    }
    const uint64_t expected = op->operands().out_bytes[static_cast<size_t>(q)];
    if (sent == expected) continue;
    const uint64_t size = dtype_size(op->call.dtype);
    fail_at(*op, Code::Mismatch,
            formatted(": {} sends {} elements to rank {}, which expects {}; both sides must name the same count",
                      rank_text(q), sent / size, rank_, expected / size));
    return false;
  }
  return true;
}

std::byte *Member::ring_of(Operation *op, int rank) noexcept {
  if (rank < 0 || rank == rank_) return context_->arena().base() + op->ring;
  PeerRank &p = peers_[rank];
  if (p.ring_sequence != op->sequence) {
    const Description &d = p.mail->description(op->sequence);
    const uint64_t offset = d.ring.load(std::memory_order_relaxed);
    const uint64_t limit = p.process ? p.process->arena.size() : context_->arena().bytes();
    const uint64_t need = op->plan->slots * op->plan->slot_bytes;
    if (d.sequence.load(std::memory_order_acquire) != op->sequence || offset < link::Arena::kHeader || offset > limit ||
        need > limit - offset) {
      fail_at(*op, Code::Internal, formatted(": {} announced a ring outside its shared memory", rank_text(rank)));
      return nullptr;
    }
    p.ring_sequence = op->sequence;
    p.ring = p.arena + offset;
  }
  return p.ring;
}

std::byte *Member::address(Operation *op, const plan::Span &span, uint32_t c) noexcept {
  const uint64_t offset = plan::span_offset(*op->plan, span, c, op->operands());
  switch (span.memory) {
    case Memory::Input: return const_cast<std::byte *>(op->call.in) + offset;
    case Memory::Output: return op->call.out + offset;
    case Memory::Scratch: return (op->scratch ? context_->arena().base() + op->scratch : scratch_.data()) + offset;
    case Memory::Device: return nullptr;  // the device list alone has it
    case Memory::Ring: break;
  }
  std::byte *ring = ring_of(op, span.rank);
  return ring ? ring + offset : nullptr;
}

bool Member::begin_plan(Operation *op) noexcept {
  if (op->phase != Phase::Fresh) return true;
  entered_.store(op->sequence, std::memory_order_release);
  if (!start_plan(op)) return false;
  op->phase = op->plan->pairwise_sizes ? Phase::Comparing : Phase::Running;
  return true;
}

Member::Outcome Member::run_plan(Operation *op) noexcept {
  if (!begin_plan(op)) return Outcome::Blocked;
  const plan::Plan &p = *op->plan;
  if (op->bounce && bounce_on(op)) bounced_ = true;
  if (op->phase == Phase::Comparing) {
    if (!compare_sizes(op)) return Outcome::Blocked;
    op->phase = Phase::Running;
  }
  if (op->phase == Phase::Running) {
    for (; !op->at.done(); op->at.next())
      if (run_step(op, op->at.step(), op->at.chunk()) == Outcome::Blocked) return Outcome::Blocked;
    op->phase = Phase::Draining;
    op->next_rank = 0;
  }
  // The links may still read the user's memory.
  for (; p.uses_links && op->next_rank < static_cast<uint32_t>(world_); ++op->next_rank)
    if (peers_[op->next_rank].in_link.load(std::memory_order_acquire) != 0) {
      op->blocked_on = static_cast<int>(op->next_rank);
      return Outcome::Blocked;
    }
  if (p.device.empty()) return slots_held(op) ? Outcome::Ended : Outcome::Blocked;
  if (!executor_->ended(op->sequence)) return wait_for_device(op);
  if (op->bounce) bounce_on(op);  // all that came out is there
  if (!island_sound(op) || !slots_held(op) || op->broken.load(std::memory_order_acquire)) return Outcome::Blocked;
  // The library compares nothing: whoever came with something else shows here, or did before.
  for (const int q : island_ranks_)
    if (q != rank_ && !check_peer(op, q)) return Outcome::Blocked;
  return Outcome::Ended;
}

// After the last look into a slot. Where a rank failed before, why is on its way.
bool Member::slots_held(Operation *op) noexcept {
  if (!watches_slots_ || (op->plan->slot_bytes == 0 && op->plan->scratch_stride == 0)) return true;
  for (int q = 0; q < world_; ++q) {
    if (q == rank_ || !peers_[q].mail) continue;
    // Not a plain load, which may be done before the looks into slots are.
    if (peers_[q].mail->overrun.value.fetch_add(0, std::memory_order_acq_rel) == 0) continue;
    op->blocked_on = q;
    return false;
  }
  return true;
}

Member::Outcome Member::run_step(Operation *op, const plan::Step &step, uint32_t c) noexcept {
  const plan::Plan &p = *op->plan;
  const bool sized = step.kind != StepKind::Post && step.kind != StepKind::Wait && step.kind != StepKind::Taken;
  uint64_t bytes = 0;
  if (sized || step.guarded) {
    bytes = plan::extent_bytes(step.extent, c, op->operands());
    if (bytes == 0) return Outcome::Moved;
  }
  const uint64_t element = dtype_size(op->call.dtype);
  const uint64_t wide = step.partial ? bytes / element * dtype_size(accumulator(op->call.dtype)) : bytes;
  switch (step.kind) {
    case StepKind::Wait: {
      const int64_t v = step.mul * c + step.add;
      if (v <= 0) return Outcome::Moved;
      const uint64_t want = (op->sequence << plan::kValueBits) + static_cast<uint64_t>(v);
      if (step.counter >= plan::kCounters) {
        if (executor_->posted(step.counter) < want) return wait_for_device(op);
        return island_sound(op) ? Outcome::Moved : Outcome::Blocked;
      }
      if (peers_[step.peer].mail->counters[step.counter].value.load(std::memory_order_acquire) < want) {
        op->blocked_on = step.peer;
        return Outcome::Blocked;
      }
      return check_peer(op, step.peer) ? Outcome::Moved : Outcome::Blocked;
    }
    case StepKind::Post: {
      const int64_t v = step.mul * c + step.add;
      if (step.counter >= plan::kCounters) {
        executor_->ready((op->sequence << plan::kValueBits) + static_cast<uint64_t>(v));
        return Outcome::Moved;
      }
      mail_->counters[step.counter].value.store((op->sequence << plan::kValueBits) + static_cast<uint64_t>(v),
                                                std::memory_order_release);
      for (int q = 0; q < world_; ++q)
        if (q != rank_ && peers_[q].bell) peers_[q].bell->ring();
      return Outcome::Moved;
    }
    case StepKind::Move: {
      std::byte *to = address(op, step.dst, c);
      const std::byte *from = address(op, p.sources[step.source], c);
      if (!to || !from) return Outcome::Blocked;
      if (step.scaled) scale(to, from, bytes, op->call);
      else if (step.dst.memory == Memory::Ring) hand_over_.copy(to, from, wide);
      else if (to != from) reduce::copy(to, from, wide, step.stream && op->streams);
      return Outcome::Moved;
    }
    case StepKind::Reduce: {
      for (uint32_t i = 0; i < step.sources; ++i) {
        const plan::Span &s = p.sources[step.source + i];
        sources_[i] = {address(op, s, c), s.partial, s.weight};
        if (!sources_[i].data) return Outcome::Blocked;
      }
      reduce::Fold f{
          op->call.dtype, op->call.op, {sources_.data(), step.sources}, {p.group_ends.data() + step.group, step.groups}};
      f.dst = address(op, step.dst, c);
      f.copy = step.has_copy ? address(op, step.copy, c) : nullptr;
      f.partial = step.partial;
      f.divisor = op->call.op == RedOp::Avg ? static_cast<uint64_t>(world_) : 1;
      f.stream_copy = step.stream && op->streams;
      f.stream_dst = step.dst.memory == Memory::Ring && hand_over_.streams(wide);
      context_->helpers().fold(f, bytes / element);
      return Outcome::Moved;
    }
    case StepKind::Send: {
      const std::byte *from = address(op, p.sources[step.source], c);
      return from ? send_step(op, step, c, wide, from) : Outcome::Blocked;
    }
    case StepKind::Taken: {
      if (op->in_slot[c % std::max(p.slots, 1u)].load(std::memory_order_acquire) == 0) return Outcome::Moved;
      for (const auto &s : p.steps)
        if (s.kind == StepKind::Send && peers_[s.peer].in_link.load(std::memory_order_relaxed) != 0) op->blocked_on = s.peer;
      return Outcome::Blocked;
    }
    case StepKind::Recv: {
      std::byte *to = address(op, step.dst, c);
      return to ? recv_step(op, step, wide, to) : Outcome::Blocked;
    }
    case StepKind::Ccl: break;
  }
  fail(Code::Internal, formatted("{}: the plan has a step that the host cannot run", describe(*op)), true);
  return Outcome::Blocked;
}

Member::Outcome Member::send_step(Operation *op, const plan::Step &step, uint32_t c, uint64_t bytes,
                                  const std::byte *data) noexcept {
  PeerRank &p = peers_[step.peer];
  if (!p.send_credit.take(bytes)) {
    op->blocked_on = step.peer;
    return Outcome::Blocked;
  }
  link::Outgoing *f = take_frame();
  f->header = link::FrameHeader{};
  f->header.kind = link::FrameKind::PlanData;
  f->header.dtype = static_cast<uint8_t>(op->call.dtype);
  f->header.member = p.their_index;
  f->header.epoch = epoch_;
  f->header.source = static_cast<uint32_t>(rank_);
  f->header.tag = static_cast<int32_t>(op->sequence & 0x7fffffff);
  f->header.id = p.frames_out++;
  f->header.total = bytes;
  f->header.digest = op->digest;
  f->data = data;
  f->pending = &p.in_link;
  f->finished = give_frame;
  p.in_link.fetch_add(1, std::memory_order_relaxed);
  f->also = nullptr;
  if (!op->plan->device.empty()) {
    f->also = &op->in_slot[c % std::max(op->plan->slots, 1u)];
    f->also->fetch_add(1, std::memory_order_relaxed);
  }
  p.link->post(*f);
  return Outcome::Moved;
}

Member::Outcome Member::recv_step(Operation *op, const plan::Step &step, uint64_t bytes, std::byte *to) noexcept {
  if (inbox_.take(step.peer, bytes, op->digest, to) == PlanInbox::Taken::Yes) {
    consumed(step.peer, bytes);
    return Outcome::Moved;
  }
  op->blocked_on = step.peer;
  return Outcome::Blocked;
}

link::Accept Member::accept_frame(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) {
  if (h.source >= static_cast<uint32_t>(world_) || h.epoch != epoch_) return link::Accept::Drop;
  if (h.kind != link::FrameKind::PlanData) return accept_message(h, to);
  if (failed()) return link::Accept::Drop;
  return inbox_.accept(h, since_ns, now_ns(), std::max<uint64_t>(credit_window_, uint64_t{1} << 32), to);
}

void Member::received_frame(const link::FrameHeader &h) {
  if (h.kind == link::FrameKind::PlanData) inbox_.received(h);
  else received_message(h);
}

}  // namespace isthmus::engine
