// Messages that no processor touches: they go through receive slots (p2p/recv_slots.hpp), which count; here bytes are moved.
//
// Both ranks tell such a message by tag and size alone, so they number the same messages. A large message is several, its parts.
//
//   the receive                          its copy
//   on a stream, its number is known     stands behind a gate, and reads the slot
//   on a stream, else                    stands behind a gate, and reads memory of its own; a processor brings the message from its slot
//   without a stream                     is submitted when the message has come, and reads the slot
//   into host memory                     a processor brings the message from its slot
//
// Where no slot is free the message goes by the link: from the user's host memory, or from pinned memory of the sender's, so that a send need
// not wait for its receive. A receive behind a gate gets it into its slot, any other where it needs it. The receives of a group count as
// called before its sends are submitted.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/copy.hpp"
#include "base/log.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {

void Member::fix_slots(uint64_t mine, uint32_t slots, const std::vector<TheirSlots> &theirs) {
  const Lock lock(match_lock_);
  recv_slots_.resize(world_, slots, part_bytes_);
  for (int q = 0; q < world_; ++q) {
    if (q == rank_ || (on_host(q) && on_host(rank_))) continue;
    PeerRank &p = peers_[static_cast<size_t>(q)];
    if (slots != 0)
      recv_slots_.open(q, mine + slots_of(rank_, q) * slots * part_bytes_, mail_->asked(q, world_, cell_bytes_),
                       mail_->landed(q, world_, cell_bytes_));
    if (const TheirSlots &there = theirs[static_cast<size_t>(q)]; there.slots != 0)
      p.slots.open(there.slots, there.there, part_bytes_, p.mail->asked(rank_, world_, cell_bytes_),
                   p.mail->landed(rank_, world_, cell_bytes_));
  }
}

// Both sides come to the same answer: a message and its receive that differ in size fail the communicator.
bool Member::takes_slot(int tag, uint64_t bytes) const noexcept { return tag == 0 && bytes > 0 && bytes <= part_bytes_; }

bool Member::would_take_slot(bool send, int peer, uint64_t bytes) const noexcept {
  const PeerRank &p = peers_[static_cast<size_t>(peer)];
  if (part_bytes_ == 0 || !takes_slot(0, std::min(bytes, part_bytes_))) return false;
  if (send) return p.slots.reached();
  const Lock lock(match_lock_);
  return recv_slots_.any() && recv_slots_.has(peer) && !on_host(peer);  // a rank of the host sends by the link
}

void Member::announce(Operation *op) noexcept {
  op->grouped = true;
  const int source = op->call.root;
  if (op->call.collective != Collective::Recv || source < 0 || part_bytes_ == 0) return;
  const uint64_t bytes = op->call.bytes, part = part_of(*op);
  const uint64_t messages = bytes <= part_bytes_
                                ? takes_slot(op->call.tag, bytes)
                                : bytes / part * takes_slot(op->call.tag, part) + takes_slot(op->call.tag, bytes % part);
  const Lock lock(match_lock_);
  if (messages == 0 || !recv_slots_.any() || !recv_slots_.has(source)) return;
  op->slot.promised = true;
  recv_slots_.promise(source, messages);
}

// ---- the sender ----------------------------------------------------------------------------------------------------------------------

void Member::number_send(Operation *op) noexcept {
  PeerRank &p = peers_[op->call.root];
  if (op->slot.number == 0 && p.slots.any() && takes_slot(op)) op->slot.number = p.slots.number();
}

bool Member::slot_free(const Operation *op) const noexcept { return peers_[op->call.root].slots.free(op->slot.number); }

bool Member::into_slot(Operation *op) noexcept {
  if (!slot_free(op)) return false;
  p2p::SendSlots &slots = peers_[op->call.root].slots;
  slots.took(now_ns());
  op->send_slot = slots.place(op->slot.number);
  return true;
}

// By who submits copies. The patience is no less than a group's.
bool Member::waits_for_slot(const Operation *op) noexcept {
  constexpr int64_t kPatience = 100'000'000;
  return peers_[op->call.root].slots.worth_waiting(op->slot.number, {.now_ns = now_ns(),
                                                                     .patience_ns = std::max(kPatience, group_wait_ns_),
                                                                     .grouped = op->grouped,
                                                                     .called_ns = op->submitted_ns,
                                                                     .group_ns = group_wait_ns_});
}

bool Member::room_for_a_waiter() noexcept {
  const Lock lock(match_lock_);
  for (const Operation *o = taking_.head; o; o = o->match_next)
    if (o->port == Port::Taken && o->ticket.load(std::memory_order_relaxed) == 0 && slot_free(o)) return true;
  return false;
}

// ---- the receiver --------------------------------------------------------------------------------------------------------------------

// Whether a receive that is called now knows where its message will lie, and may have a gate there.
bool Member::claimable(const Operation *op) const noexcept { return takes_slot(op) && recv_slots_.claimable(op->call.root); }

void Member::claim(Operation *op) noexcept {
  if (!takes_slot(op) || !recv_slots_.any()) return;
  recv_slots_.claim(op->slot, op->call.root, op->port == Port::Expected, op->place.own_or_will());
  if (op->slot.in_slot) read_slot(op, op->call.root, op->slot.expected);
}

// The receive's place is that slot.
void Member::read_slot(Operation *op, int source, uint64_t number) noexcept {
  op->slot.in_slot = true;
  op->place.piece.offset = recv_slots_.place(source, number);
}

void Member::stand_apart(Operation *op) noexcept {
  if (takes_slot(op) && recv_slots_.any()) recv_slots_.stand_apart(op->slot, op->call.root);
}

// Its message has come, or word of it.
void Member::number_receive(Operation *op, int source) noexcept {
  if (takes_slot(op) && recv_slots_.any()) recv_slots_.match(op->slot, op->call.root, source);
}

// By the link or a processor into its slot: once that is empty.
bool Member::may_come(const Operation *op) const noexcept {
  return !op->slot.in_slot || recv_slots_.may_come(op->slot, op->source);
}

// The copy from its slot is submitted.
void Member::slot_submitted(const Operation *op) noexcept {
  if (op->slot.in_slot) recv_slots_.submitted(op->source, op->slot.number);
}

// Its slot is empty, or it needs none.
void Member::slot_left(Operation *op) noexcept {
  if (op->slot.number != 0) recv_slots_.leave(op->slot, op->source);
}

// False: the two sides have not counted alike, which op->text says.
bool Member::is_its_turn(Operation *op) noexcept {
  if (p2p::RecvSlots::as_expected(op->slot)) return true;
  op->text = formatted(
      "{}: {} has sent message {} of its receive slots where {} was to come; all ranks must run the same version of "
      "Isthmus",
      describe(*op), rank_text(op->source), op->slot.number, op->slot.expected);
  return false;
}

// A small message that came with its data needs no slot of its own.
bool Member::begin_taking(Operation *op) noexcept {
  if (!is_its_turn(op)) return false;
  if (!op->slot.in_slot) slot_left(op);
  return true;
}

bool Member::lies_there(Operation *op, uint32_t slot) noexcept {
  if (!is_its_turn(op)) return false;
  if (op->slot.number == 0 || slot != recv_slots_.slot(op->slot.number)) {
    op->text = formatted(
        "{}: {} has put message {} into receive slot {}, where it does not belong; all ranks must run the same version of "
        "Isthmus",
        describe(*op), rank_text(op->source), op->slot.number, slot);
    return false;
  }
  if (!on_stage(op) || op->place.own_or_will()) {
    op->lies = static_cast<int32_t>(slot);
    granting_.append(op);
    moving_.fetch_add(1, std::memory_order_release);
    context_->wake();
    return true;
  }
  if (!op->slot.in_slot) read_slot(op, op->source, op->slot.number);  // else its copy may be being submitted just now
  come(op);
  return true;
}

// By this processor, from its slot.
void Member::bring(Operation *op) noexcept {
  std::byte *const base = context_->arena().base();
  std::byte *to, *from;
  {
    const Lock lock(match_lock_);
    touch_slots();
    to = op->data(base);
    from = base + recv_slots_.place(op->source, op->slot.number);
  }
  copy_bytes(to, from, op->call.bytes);
  has_landed(op);
  {
    const Lock lock(match_lock_);  // exec: nobody else has taken it out
    granting_.take(op);
    moving_.fetch_sub(1, std::memory_order_release);
    op->lies = -1;
    if (on_stage(op)) return come(op);
  }
  end_op(op, Code::Ok, {});
}

void Member::has_landed(Operation *op) noexcept {
  {
    const Lock lock(match_lock_);
    slot_left(op);
  }
  if (Doorbell *const bell = peers_[op->source].bell) bell->ring();
}

// ---- the guard -----------------------------------------------------------------------------------------------------------------------

namespace {
void change_access(std::span<const std::span<std::byte>> slots, int access) noexcept {
  for (const std::span<std::byte> each : slots)
    if (::mprotect(each.data(), each.size(), access) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to receive slots cannot be changed ({})", std::strerror(errno));
}
}  // namespace

void Member::guard_recv_slots(std::vector<std::span<std::byte>> slots) {
  change_access(slots, PROT_NONE);
  const Lock lock(match_lock_);
  guarded_recv_slots_ = std::move(slots);
}

void Member::touch_slots() noexcept {
  change_access(guarded_recv_slots_, PROT_READ | PROT_WRITE);
  guarded_recv_slots_.clear();
}

}  // namespace isthmus::engine
