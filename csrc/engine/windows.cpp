// Messages that no processor touches. Between two ranks that share memory, one of which works on a device, each has a *window* for the
// other: a few slots at a place that both devices reach, fixed when the communicator is made. The sender numbers its messages with tag 0
// (a large one is several, its parts) in the order in which they are matched, and number n has slot n mod K of the receiver's window. So
// the sender's device can write there as soon as the message K before has left the slot, whether the receive has been called or not; and a
// receive knows where its message will lie before it has come, so its copy can be submitted behind a gate.
//
// The receiver counts too, in the order in which receives are called. One from any rank may take a message of each of them: while it waits,
// the receives called after it do not know their numbers before their messages come. One of these on a stream has a place of its own, to which
// a processor brings what lies in a slot; so has one that may not have a gate (may_gate). The copies of those without a stream are submitted
// when their messages have come, from their slots.
//
// Where no slot is free the message goes by the link: from the user's host memory, or from pinned memory of the sender's, so that a send need
// not wait for its receive. A receive behind a gate gets it into its slot, any other where it needs it. Where the receive has been called, the
// slot will be free soon, and the sender waits for it. The receives of a group count as called before its sends are submitted.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/copy.hpp"
#include "base/log.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {
namespace {

// `upto` and `apart` together are the numbers that were given here; all up to the first are.
void count(uint64_t &upto, std::vector<uint64_t> &apart, uint64_t number) {
  if (number > upto) apart.push_back(number);
  const auto next = [&] { return std::find(apart.begin(), apart.end(), upto + 1); };
  for (auto at = next(); at != apart.end(); at = next()) {
    *at = apart.back();
    apart.pop_back();
    ++upto;
  }
}

}  // namespace

void Member::fix_windows(uint64_t mine, uint32_t slots, const std::vector<TheirWindow> &theirs) {
  window_slots_ = slots;
  for (int q = 0; q < world_; ++q) {
    if (q == rank_ || (on_host(q) && on_host(rank_))) continue;
    PeerRank &p = peers_[static_cast<size_t>(q)];
    if (slots != 0) p.from.offset = mine + window_of(rank_, q) * slots * part_bytes_;
    p.to.slots = theirs[static_cast<size_t>(q)].slots;
    p.to.there = p.to.slots != 0 ? theirs[static_cast<size_t>(q)].there : nullptr;
  }
}

// Both sides come to the same answer: a message and its receive that differ in size fail the communicator.
bool Member::by_window(int tag, uint64_t bytes) const noexcept { return tag == 0 && bytes > 0 && bytes <= part_bytes_; }

bool Member::takes_window(bool send, int peer, uint64_t bytes) const noexcept {
  const PeerRank &p = peers_[static_cast<size_t>(peer)];
  if (part_bytes_ == 0 || !by_window(0, std::min(bytes, part_bytes_))) return false;
  // A rank of the host sends by the link.
  return send ? p.to.slots != 0 && p.to.there : p.from.offset != 0 && !on_host(peer);
}

void Member::announce(Op *op) noexcept {
  op->grouped = true;
  if (op->call.collective != plan::Collective::Recv || op->call.root < 0 || window_slots_ == 0) return;
  auto &from = peers_[op->call.root].from;
  const uint64_t bytes = op->call.bytes, part = part_of(*op);
  const uint64_t windows = bytes <= part_bytes_
                               ? by_window(op->call.tag, bytes)
                               : bytes / part * by_window(op->call.tag, part) + by_window(op->call.tag, bytes % part);
  const std::lock_guard lock(match_lock_);
  if (from.offset == 0 || windows == 0) return;
  op->promised = true;
  from.promised += windows;
  say_asked(op->call.root);
}

// ---- the sender ----------------------------------------------------------------------------------------------------------------------

void Member::number_send(Op *op) noexcept {
  PeerRank &p = peers_[op->call.root];
  if (op->number == 0 && p.to.slots != 0 && by_window(op)) op->number = ++p.to.numbered;
}

bool Member::slot_free(const Op *op) noexcept {
  PeerRank &p = peers_[op->call.root];
  return op->number != 0 && p.to.there &&
         op->number <= p.mail->landed(rank_, world_, cell_bytes_).load(std::memory_order_acquire) + p.to.slots;
}

bool Member::into_window(Op *op) noexcept {
  if (!slot_free(op)) return false;
  PeerRank &p = peers_[op->call.root];
  p.to.seen_ns = now_ns();
  op->window = p.to.there + (op->number - 1) % p.to.slots * part_bytes_;
  return true;
}

// Under the porter mutex. What has been asked for leaves its slot without anything that this rank has yet to do; but where the receiver's
// device has one queue, a gate of another message may stand before. So the patience, which is no less than a group's: from when the window last
// took or lost a message. In a group the other side is likely to come to its own at about the same time.
bool Member::waits_for_slot(const Op *op) noexcept {
  constexpr int64_t kPatience = 100'000'000;
  const int64_t patience = std::max(kPatience, group_wait_ns_);
  PeerRank &p = peers_[op->call.root];
  if (op->number == 0 || !p.to.there) return false;
  const int64_t now = now_ns();
  const uint64_t asked = p.mail->asked(rank_, world_, cell_bytes_).load(std::memory_order_acquire);
  if (asked > p.to.asked) {
    p.to.asked = asked;
    p.to.seen_ns = now;
  }
  if (asked < op->number)  // and where it was more once, the receive has got another place
    return op->grouped && p.to.asked < op->number && now - op->submitted_ns < group_wait_ns_;
  if (const uint64_t landed = p.mail->landed(rank_, world_, cell_bytes_).load(std::memory_order_acquire);
      landed != p.to.seen) {
    p.to.seen = landed;
    p.to.seen_ns = now;
  }
  return now - p.to.seen_ns < patience;
}

bool Member::room_for_a_waiter() noexcept {
  const std::lock_guard lock(match_lock_);
  for (const Op *o = taking_.head; o; o = o->match_next)
    if (o->port == Port::Taken && o->ticket.load(std::memory_order_relaxed) == 0 && slot_free(o)) return true;
  return false;
}

// ---- the receiver --------------------------------------------------------------------------------------------------------------------

uint64_t Member::slot_place(int source, uint64_t number) const noexcept {
  return peers_[static_cast<size_t>(source)].from.offset + (number - 1) % window_slots_ * part_bytes_;
}

// Where a device has one queue, what is submitted later waits for a gate. So number n may have one, and its slot, only if all before it have
// left theirs or their copies stand before its gate: the message might not come else, for want of the slot.
bool Member::may_gate(int source, uint64_t number) const noexcept {
  const auto &from = peers_[static_cast<size_t>(source)].from;
  return number <= from.gated + 1;
}

void Member::in_its_order(int source, uint64_t number) noexcept {
  auto &from = peers_[source].from;
  if (std::find(from.early.begin(), from.early.end(), number) == from.early.end()) count(from.gated, from.early, number);
}

// Whether a receive that is called now knows where its message will lie, and may have a gate there.
bool Member::claimable(const Op *op) const noexcept {
  if (!by_window(op) || op->call.root < 0 || any_source_ != 0) return false;
  const auto &from = peers_[static_cast<size_t>(op->call.root)].from;
  return from.offset != 0 && may_gate(op->call.root, from.claimed + 1);
}

void Member::claim(Op *op) noexcept {
  if (!by_window(op) || window_slots_ == 0) return;
  if (op->call.root < 0) {
    op->counted = true;
    ++any_source_;
    if (op->port == Port::Expected) stand_apart(op);
    return;
  }
  auto &from = peers_[op->call.root].from;
  if (from.offset == 0) return;
  const bool gated = op->port == Port::Expected;
  if (gated && !has_own_place(op)) {
    in_its_order(op->call.root, from.claimed + 1);
    op->place = slot_place(op->call.root, from.claimed + 1);
    op->windowed = true;
  }
  ++from.claimed;
  from.promised -= op->promised;
  if (any_source_ == 0) op->claim = from.claimed;
  if (gated && has_own_place(op)) stand_apart(op);
  else say_asked(op->call.root);
}

// A sender waits for its slot if the receive has been called. Not where that one stands behind a gate with a place of its own: it needs no
// slot, and the device may come to nothing that would free one before its message has come.
void Member::say_asked(int source) noexcept {
  const auto &from = peers_[source].from;
  if (from.apart == 0 && any_apart_ == 0)
    mail_->asked(source, world_, cell_bytes_).store(from.claimed + from.promised, std::memory_order_release);
}

void Member::stand_apart(Op *op) noexcept {
  if (op->apart || !by_window(op)) return;
  if (op->call.root < 0) {
    op->apart = op->counted;
    any_apart_ += op->counted;
    for (int q = 0; op->counted && q < world_; ++q)
      if (const auto &from = peers_[static_cast<size_t>(q)].from; from.offset != 0) ask_for_less(q, from.matched);
  } else if (auto &from = peers_[op->call.root].from; from.offset != 0) {
    op->apart = true;
    ++from.apart;
    ask_for_less(op->call.root, op->claim != 0 ? op->claim - 1 : from.matched);
  }
}

void Member::ask_for_less(int source, uint64_t number) noexcept {
  auto &asked = mail_->asked(source, world_, cell_bytes_);
  if (asked.load(std::memory_order_relaxed) > number) asked.store(number, std::memory_order_release);
}

// Its message has come, or word of it.
void Member::number_receive(Op *op, int source) noexcept {
  auto &from = peers_[source].from;
  const bool counted = std::exchange(op->counted, false), apart = std::exchange(op->apart, false);
  if (counted) {
    --any_source_;
    if (from.offset != 0) ++from.claimed;
  }
  if (apart) --(counted ? any_apart_ : from.apart);
  if (apart && counted && any_apart_ == 0) {
    for (int q = 0; q < world_; ++q)
      if (peers_[static_cast<size_t>(q)].from.offset != 0) say_asked(q);
  } else if (from.offset != 0 && (counted || apart)) {
    say_asked(source);
  }
  if (from.offset != 0 && by_window(op)) op->number = ++from.matched;
}

// By the link or a processor into its slot: once that is free.
bool Member::may_come(const Op *op) const noexcept {
  return !op->windowed || op->number <= peers_[static_cast<size_t>(op->source)].from.landed + window_slots_;
}

// Its slot is free, or it needs none.
void Member::slot_left(Op *op) noexcept {
  if (op->number == 0) return;
  auto &from = peers_[op->source].from;
  const uint64_t number = std::exchange(op->number, 0);
  count(from.landed, from.ahead, number);
  in_its_order(op->source, number);
  mail_->landed(op->source, world_, cell_bytes_).store(from.landed, std::memory_order_release);
}

// False: the two sides have not counted alike, which op->text says.
bool Member::is_its_turn(Op *op) noexcept {
  if (op->claim == 0 || op->claim == op->number) return true;
  op->text = formatted(
      "{}: {} has sent message {} of its window where {} was to come; all ranks must run the same version of Isthmus",
      describe(*op), rank_text(op->source), op->number, op->claim);
  return false;
}

// A small message that came with its data needs no slot of its own.
bool Member::begin_taking(Op *op) noexcept {
  if (!is_its_turn(op)) return false;
  if (!op->windowed) slot_left(op);
  return true;
}

bool Member::lies_there(Op *op, uint32_t slot) noexcept {
  if (!is_its_turn(op)) return false;
  if (op->number == 0 || slot != (op->number - 1) % window_slots_) {
    op->text = formatted(
        "{}: {} has put message {} of its window into slot {}, where it does not belong; all ranks must run the "
        "same version of Isthmus",
        describe(*op), rank_text(op->source), op->number, slot);
    return false;
  }
  if (!on_stage(op) || has_own_place(op)) {
    op->lies = static_cast<int32_t>(slot);
    granting_.append(op);
    porting_.fetch_add(1, std::memory_order_release);
    context_->wake();
    return true;
  }
  if (!op->windowed) {  // else its copy may be being submitted just now
    op->place = slot_place(op->source, op->number);
    op->windowed = true;
  }
  come(op);
  return true;
}

// By this processor, from its slot.
void Member::bring(Op *op) noexcept {
  std::byte *const base = context_->arena().base();
  std::byte *to;
  {
    const std::lock_guard lock(match_lock_);
    touch_windows();
    to = op->data(base);
  }
  copy_bytes(to, base + slot_place(op->source, op->number), op->call.bytes);
  has_landed(op);
  {
    const std::lock_guard lock(match_lock_);  // exec: nobody else has taken it out
    granting_.take(op);
    porting_.fetch_sub(1, std::memory_order_release);
    op->lies = -1;
    if (on_stage(op)) return come(op);
  }
  end_op(op, Code::Ok, {});
}

void Member::has_landed(Op *op) noexcept {
  {
    const std::lock_guard lock(match_lock_);
    slot_left(op);
  }
  if (Doorbell *const bell = peers_[op->source].bell) bell->ring();
}

// ---- the guard -----------------------------------------------------------------------------------------------------------------------

void Member::guard_windows(std::vector<std::span<std::byte>> windows) {
  for (const std::span<std::byte> window : windows)
    if (::mprotect(window.data(), window.size(), PROT_NONE) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to windows cannot be changed ({})", std::strerror(errno));
  guarded_windows_ = std::move(windows);
}

void Member::touch_windows() noexcept {
  for (const std::span<std::byte> window : guarded_windows_)
    if (::mprotect(window.data(), window.size(), PROT_READ | PROT_WRITE) != 0)
      ISTHMUS_WARN("ISTHMUS_GUARD_SLOTS: the access to windows cannot be changed ({})", std::strerror(errno));
  guarded_windows_.clear();
}

}  // namespace isthmus::engine
