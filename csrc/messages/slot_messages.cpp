#include "messages/slot_messages.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/copy.hpp"
#include "base/log.hpp"

namespace isthmus::messages {

using engine::Mailbox;

namespace {

void change_access(std::span<const std::span<std::byte>> slots, int access) noexcept {
  for (const std::span<std::byte> each : slots)
    if (::mprotect(each.data(), each.size(), access) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to receive slots cannot be changed ({})", std::strerror(errno));
}

// The place of `q`, which shares memory with this rank or is this rank, among the ranks that do.
int place_in_memory(const RankCore &core, int q) noexcept {
  const auto shares = [](const engine::PeerRank &p) { return p.mail != nullptr; };
  return static_cast<int>(std::count_if(core.peers.begin(), core.peers.begin() + q, shares));
}

// Whether messages with `q` may go through receive slots: the two share memory, and one of them works on a device.
bool by_slots(const RankCore &core, int q) noexcept {
  return q != core.id.rank && core.peers[static_cast<size_t>(q)].mail &&
         !(core.id.on_host(q) && core.id.on_host(core.id.rank));
}

}  // namespace

uint64_t PartSizes::slots_of(const Operation &op) const noexcept {
  const uint64_t bytes = op.call.bytes, part = of(op.call.dtype);
  if (!cuts(bytes)) return take_slot(&op);
  return bytes / part * take_slot(op.call.tag, part) + take_slot(op.call.tag, bytes % part);
}

void SlotSends::fix(const std::vector<TheirSlots> &theirs) {
  const int rank = core_.id.rank, world = core_.id.world;
  for (int q = 0; q < world; ++q) {
    if (!by_slots(core_, q)) continue;
    const TheirSlots &there = theirs[static_cast<size_t>(q)];
    if (there.slots == 0) continue;
    Mailbox &mail = *core_.peers[static_cast<size_t>(q)].mail;
    theirs_[static_cast<size_t>(q)].open(there.slots, there.there, sizes_.bytes(), mail.asked(rank, world, core_.cell_bytes),
                                         mail.landed(rank, world, core_.cell_bytes));
  }
}

void SlotReceives::fix(uint64_t mine, uint32_t slots) {
  const int world = core_.id.world;
  const auto s = table_.lock();
  s->slots.resize(world, slots, sizes_.bytes());
  if (slots == 0) return;
  const int place = place_in_memory(core_, core_.id.rank);
  for (int q = 0; q < world; ++q) {
    if (!by_slots(core_, q)) continue;
    s->slots.open(q, mine + slots_of(place, place_in_memory(core_, q)) * slots * sizes_.bytes(),
                  core_.mail->asked(q, world, core_.cell_bytes), core_.mail->landed(q, world, core_.cell_bytes));
  }
}

void SlotReceives::guard(std::vector<std::span<std::byte>> slots) {
  change_access(slots, PROT_NONE);
  table_.lock()->guarded_slots = std::move(slots);
}

void SlotReceives::touch(MatchState &s) noexcept {
  change_access(s.guarded_slots, PROT_READ | PROT_WRITE);
  s.guarded_slots.clear();
}

bool SlotReceives::written_by(int q) const noexcept {
  const auto s = table_.lock();
  return s->slots.any() && s->slots.has(q) && !core_.id.on_host(q);
}

void SlotReceives::announce(Operation *op) noexcept {
  op->message.grouped = true;
  const int source = op->call.root;
  if (op->call.collective != Collective::Recv || source < 0 || sizes_.bytes() == 0) return;
  const uint64_t messages = sizes_.slots_of(*op);
  const auto s = table_.lock();
  if (messages == 0 || !s->slots.any() || !s->slots.has(source)) return;
  op->message.slot.promised = true;
  s->slots.promise(source, messages);
}

// ---- the sender ----------------------------------------------------------------------------------------------------------------------

void SlotSends::number(MatchState &, Operation *op) noexcept {
  p2p::SendSlots &slots = theirs_[op->call.root];
  if (op->message.slot.number == 0 && slots.any() && sizes_.take_slot(op)) op->message.slot.number = slots.number();
}

bool SlotSends::put(Operation *op) noexcept {
  if (!is_free(op)) return false;
  p2p::SendSlots &slots = theirs_[op->call.root];
  slots.took(now_ns());
  op->carry.send_slot = slots.place(op->message.slot.number);
  return true;
}

// The patience is no less than a group's.
bool SlotSends::worth_waiting(const Operation *op) noexcept {
  constexpr int64_t kPatience = 100'000'000;
  return theirs_[op->call.root].worth_waiting(op->message.slot.number, {.now_ns = now_ns(),
                                                                        .patience_ns = std::max(kPatience, group_wait_ns_),
                                                                        .grouped = op->message.grouped,
                                                                        .called_ns = op->time.submitted_ns,
                                                                        .group_ns = group_wait_ns_});
}

bool SlotSends::has_room_for_waiter() noexcept {
  const auto s = table_.lock();
  for (const Operation *o = s->taking.head; o; o = o->message.next)
    if (o->carry.port == Port::Taken && o->carry.ticket.load(std::memory_order_relaxed) == 0 && is_free(o)) return true;
  return false;
}

// ---- the receiver --------------------------------------------------------------------------------------------------------------------

bool SlotReceives::claimable(const MatchState &s, const Operation *op) const noexcept {
  return sizes_.take_slot(op) && s.slots.claimable(op->call.root);
}

void SlotReceives::claim(MatchState &s, Operation *op) noexcept {
  if (!sizes_.take_slot(op) || !s.slots.any()) return;
  s.slots.claim(op->message.slot, op->call.root, op->carry.port == Port::Expected, op->message.place.own_or_will());
  if (op->message.slot.in_slot) read_slot(s, op, op->call.root, op->message.slot.expected);
}

bool SlotReceives::claim_posted(MatchState &s, Operation *op) noexcept {
  if (!s.slots.take_slot(op->message.slot, op->call.root)) return false;
  read_slot(s, op, op->call.root, op->message.slot.expected);
  return true;
}

// The receive's place is that slot.
void SlotReceives::read_slot(MatchState &s, Operation *op, int source, uint64_t number) noexcept {
  op->message.slot.in_slot = true;
  op->message.place.piece.offset = s.slots.place(source, number);
}

void SlotReceives::stand_apart(MatchState &s, Operation *op) noexcept {
  if (sizes_.take_slot(op) && s.slots.any()) s.slots.stand_apart(op->message.slot, op->call.root);
}

void SlotReceives::match(MatchState &s, Operation *op, int source) noexcept {
  if (sizes_.take_slot(op) && s.slots.any()) s.slots.match(op->message.slot, op->call.root, source);
}

bool SlotReceives::may_come(const MatchState &s, const Operation *op) const noexcept {
  return !op->message.slot.in_slot || s.slots.may_come(op->message.slot, op->message.source);
}

void SlotReceives::submitted(MatchState &s, const Operation *op) noexcept {
  if (op->message.slot.in_slot) s.slots.submitted(op->message.source, op->message.slot.number);
}

// The receive's slot is empty, or the receive needs no slot.
void SlotReceives::leave(MatchState &s, Operation *op) noexcept {
  if (op->message.slot.number != 0) s.slots.leave(op->message.slot, op->message.source);
}

bool SlotReceives::is_its_turn(Operation *op) const {
  if (p2p::RecvSlots::as_expected(op->message.slot)) return true;
  op->end.text = formatted(
      "{}: {} has sent message {} of its receive slots where {} was to come; all ranks must run the same version of "
      "Isthmus",
      core_.describe(*op), core_.id.text(op->message.source), op->message.slot.number, op->message.slot.expected);
  return false;
}

bool SlotReceives::begin(MatchState &s, Operation *op) noexcept {
  if (!is_its_turn(op)) return false;
  if (!op->message.slot.in_slot) leave(s, op);
  return true;
}

bool SlotReceives::lies_there(MatchState &s, Operation *op, uint32_t slot) noexcept {
  if (!is_its_turn(op)) return false;
  if (op->message.slot.number == 0 || slot != s.slots.slot(op->message.slot.number)) {
    op->end.text = formatted(
        "{}: {} has put message {} into receive slot {}, where it does not belong; all ranks must run the same version of "
        "Isthmus",
        core_.describe(*op), core_.id.text(op->message.source), op->message.slot.number, slot);
    return false;
  }
  if (!on_stage(op) || op->message.place.own_or_will()) {
    op->message.lies = static_cast<int32_t>(slot);
    table_.wait_for_place(s, op);
    return true;
  }
  if (!op->message.slot.in_slot)
    read_slot(s, op, op->message.source, op->message.slot.number);  // else a thread may submit the copy just now
  table_.landed(s, op);
  return true;
}

bool SlotReceives::bring(Operation *op) noexcept {
  std::byte *const base = core_.context->arena().base();
  std::byte *to, *from;
  {
    const auto s = table_.lock();
    touch(*s);
    to = op->data(base);
    from = base + s->slots.place(op->message.source, op->message.slot.number);
  }
  core_.context->helpers().copy(to, from, op->call.bytes, false);
  has_left(op);
  const auto s = table_.lock();
  s->granting.take(op);
  table_.end_moving();
  op->message.lies = -1;
  if (!on_stage(op)) return true;
  table_.landed(*s, op);
  return false;
}

void SlotReceives::has_left(Operation *op) noexcept {
  leave(*table_.lock(), op);
  if (Doorbell *const bell = core_.peers[op->message.source].bell) bell->ring();
}

}  // namespace isthmus::messages
