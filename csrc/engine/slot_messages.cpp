#include "engine/slot_messages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/copy.hpp"
#include "base/log.hpp"

namespace isthmus::engine {
namespace {

void change_access(std::span<const std::span<std::byte>> slots, int access) noexcept {
  for (const std::span<std::byte> each : slots)
    if (::mprotect(each.data(), each.size(), access) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to receive slots cannot be changed ({})", std::strerror(errno));
}

}  // namespace

void SlotMessages::fix(uint64_t mine, uint32_t slots, const std::vector<TheirSlots> &theirs) {
  const int rank = core_.id.rank, world = core_.id.world;
  const auto s = table_.lock();
  s->slots.resize(world, slots, part_bytes_);
  for (int q = 0; q < world; ++q) {
    if (q == rank || (core_.id.on_host(q) && core_.id.on_host(rank))) continue;
    const PeerRank &p = core_.peers[static_cast<size_t>(q)];
    if (slots != 0)
      s->slots.open(q, mine + slots_of(rank, q) * slots * part_bytes_, core_.mail->asked(q, world, core_.cell_bytes),
                    core_.mail->landed(q, world, core_.cell_bytes));
    if (const TheirSlots &there = theirs[static_cast<size_t>(q)]; there.slots != 0)
      theirs_[static_cast<size_t>(q)].open(there.slots, there.there, part_bytes_,
                                           p.mail->asked(rank, world, core_.cell_bytes),
                                           p.mail->landed(rank, world, core_.cell_bytes));
  }
}

void SlotMessages::guard(std::vector<std::span<std::byte>> slots) {
  change_access(slots, PROT_NONE);
  table_.lock()->guarded_slots = std::move(slots);
}

void SlotMessages::touch(MatchState &s) noexcept {
  change_access(s.guarded_slots, PROT_READ | PROT_WRITE);
  s.guarded_slots.clear();
}

bool SlotMessages::would_take(bool send, int peer, uint64_t bytes) const noexcept {
  if (part_bytes_ == 0 || !takes(0, std::min(bytes, part_bytes_))) return false;
  if (send) return theirs_[static_cast<size_t>(peer)].reached();
  const auto s = table_.lock();
  return s->slots.any() && s->slots.has(peer) && !core_.id.on_host(peer);  // a rank of the host sends by the link
}

void SlotMessages::announce(Operation *op) noexcept {
  op->grouped = true;
  const int source = op->call.root;
  if (op->call.collective != Collective::Recv || source < 0 || part_bytes_ == 0) return;
  const uint64_t bytes = op->call.bytes, part = part_of(op->call.dtype);
  const uint64_t messages = bytes <= part_bytes_
                                ? takes(op->call.tag, bytes)
                                : bytes / part * takes(op->call.tag, part) + takes(op->call.tag, bytes % part);
  const auto s = table_.lock();
  if (messages == 0 || !s->slots.any() || !s->slots.has(source)) return;
  op->slot.promised = true;
  s->slots.promise(source, messages);
}

// ---- the sender ----------------------------------------------------------------------------------------------------------------------

void SlotMessages::number_send(MatchState &, Operation *op) noexcept {
  p2p::SendSlots &slots = theirs_[op->call.root];
  if (op->slot.number == 0 && slots.any() && takes(op)) op->slot.number = slots.number();
}

bool SlotMessages::put_in_slot(Operation *op) noexcept {
  if (!is_free(op)) return false;
  p2p::SendSlots &slots = theirs_[op->call.root];
  slots.took(now_ns());
  op->send_slot = slots.place(op->slot.number);
  return true;
}

// The patience is no less than a group's.
bool SlotMessages::worth_waiting(const Operation *op) noexcept {
  constexpr int64_t kPatience = 100'000'000;
  return theirs_[op->call.root].worth_waiting(op->slot.number, {.now_ns = now_ns(),
                                                                .patience_ns = std::max(kPatience, group_wait_ns_),
                                                                .grouped = op->grouped,
                                                                .called_ns = op->submitted_ns,
                                                                .group_ns = group_wait_ns_});
}

bool SlotMessages::has_room_for_waiter() noexcept {
  const auto s = table_.lock();
  for (const Operation *o = s->taking.head; o; o = o->match_next)
    if (o->port == Port::Taken && o->ticket.load(std::memory_order_relaxed) == 0 && is_free(o)) return true;
  return false;
}

// ---- the receiver --------------------------------------------------------------------------------------------------------------------

bool SlotMessages::claimable(const MatchState &s, const Operation *op) const noexcept {
  return takes(op) && s.slots.claimable(op->call.root);
}

void SlotMessages::claim(MatchState &s, Operation *op) noexcept {
  if (!takes(op) || !s.slots.any()) return;
  s.slots.claim(op->slot, op->call.root, op->port == Port::Expected, op->place.own_or_will());
  if (op->slot.in_slot) read_slot(s, op, op->call.root, op->slot.expected);
}

bool SlotMessages::claim_posted(MatchState &s, Operation *op) noexcept {
  if (!s.slots.take_slot(op->slot, op->call.root)) return false;
  read_slot(s, op, op->call.root, op->slot.expected);
  return true;
}

// The receive's place is that slot.
void SlotMessages::read_slot(MatchState &s, Operation *op, int source, uint64_t number) noexcept {
  op->slot.in_slot = true;
  op->place.piece.offset = s.slots.place(source, number);
}

void SlotMessages::stand_apart(MatchState &s, Operation *op) noexcept {
  if (takes(op) && s.slots.any()) s.slots.stand_apart(op->slot, op->call.root);
}

void SlotMessages::match(MatchState &s, Operation *op, int source) noexcept {
  if (takes(op) && s.slots.any()) s.slots.match(op->slot, op->call.root, source);
}

bool SlotMessages::may_come(const MatchState &s, const Operation *op) const noexcept {
  return !op->slot.in_slot || s.slots.may_come(op->slot, op->source);
}

void SlotMessages::submitted(MatchState &s, const Operation *op) noexcept {
  if (op->slot.in_slot) s.slots.submitted(op->source, op->slot.number);
}

// Its slot is empty, or it needs none.
void SlotMessages::leave(MatchState &s, Operation *op) noexcept {
  if (op->slot.number != 0) s.slots.leave(op->slot, op->source);
}

bool SlotMessages::is_its_turn(Operation *op) const {
  if (p2p::RecvSlots::as_expected(op->slot)) return true;
  op->text = formatted(
      "{}: {} has sent message {} of its receive slots where {} was to come; all ranks must run the same version of "
      "Isthmus",
      core_.describe(*op), core_.id.text(op->source), op->slot.number, op->slot.expected);
  return false;
}

bool SlotMessages::begin(MatchState &s, Operation *op) noexcept {
  if (!is_its_turn(op)) return false;
  if (!op->slot.in_slot) leave(s, op);
  return true;
}

bool SlotMessages::lies_there(MatchState &s, Operation *op, uint32_t slot) noexcept {
  if (!is_its_turn(op)) return false;
  if (op->slot.number == 0 || slot != s.slots.slot(op->slot.number)) {
    op->text = formatted(
        "{}: {} has put message {} into receive slot {}, where it does not belong; all ranks must run the same version of "
        "Isthmus",
        core_.describe(*op), core_.id.text(op->source), op->slot.number, slot);
    return false;
  }
  if (!on_stage(op) || op->place.own_or_will()) {
    op->lies = static_cast<int32_t>(slot);
    table_.wait_for_place(s, op);
    return true;
  }
  if (!op->slot.in_slot) read_slot(s, op, op->source, op->slot.number);  // else its copy may be being submitted just now
  table_.landed(s, op);
  return true;
}

bool SlotMessages::bring(Operation *op) noexcept {
  std::byte *const base = core_.context->arena().base();
  std::byte *to, *from;
  {
    const auto s = table_.lock();
    touch(*s);
    to = op->data(base);
    from = base + s->slots.place(op->source, op->slot.number);
  }
  copy_bytes(to, from, op->call.bytes);
  has_left(op);
  const auto s = table_.lock();
  s->granting.take(op);
  table_.end_moving();
  op->lies = -1;
  if (!on_stage(op)) return true;
  table_.landed(*s, op);
  return false;
}

void SlotMessages::has_left(Operation *op) noexcept {
  leave(*table_.lock(), op);
  if (Doorbell *const bell = core_.peers[op->source].bell) bell->ring();
}

}  // namespace isthmus::engine
