// MessageTable has the messages of one rank between their call and their end, and the messages that came before their receives. One lock, the match
// lock, guards all lists. The caller of a function that takes a MatchState & holds the match lock.
//
//   a send                                        a receive
//   taking     its bytes are not out yet          posted      no message yet
//   sending    announced, not asked for           granting    its message is announced or here, and waits for a place
//   flowing    its link has the message           receiving   its data flows in
//                                                 flowing     has claimed a message that is still arriving
//                                                 landing     all is here, in pinned memory or a receive slot
//
// Every operation between ranks is in one of the lists until the operation ends. So the operation's deadline is seen.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "base/lock.hpp"
#include "messages/device_copier.hpp"
#include "messages/match_order.hpp"
#include "p2p/recv_slots.hpp"
#include "p2p/staging_pool.hpp"

namespace isthmus::messages {

constexpr bool on_stage(const Operation *op) noexcept { return op->carry.port != Port::None; }  // in device memory
// A whole message that may be sent before the receiver asks. A short last part of a long message is not small: the part waits with the other parts.
constexpr bool is_small(const Operation *op) noexcept {
  return op->call.bytes <= UnexpectedMessages::kData && op->cut.whole == 0;
}

struct MatchState : MatchOrder {
  OperationList sending, receiving, flowing, taking, granting, landing;
  OperationList exchanging;  // the vendor's library has them
  std::array<OperationList *, 8> all{&posted, &sending, &receiving, &flowing, &taking, &granting, &landing, &exchanging};
  p2p::MessageNumbers numbers;
  bool empty() const noexcept {
    return std::all_of(all.begin(), all.end(), [](const OperationList *list) { return list->head == nullptr; });
  }
  p2p::RecvSlots slots;
  p2p::PlaceChain chain{UnexpectedMessages::kData};  // small receives with pinned memory of their own and no heir
  std::vector<std::span<std::byte>> guarded_slots;   // receive slots that are closed to this process

  // Sends of device memory.
  uint32_t unstaged = 0;              // sends in `taking` that wait for pinned memory or a slot
  std::array<uint32_t, 2> starved{};  // those that have found no pinned memory: large, small
  void place_later(Operation *op) noexcept {
    op->carry.unplaced = true;
    ++unstaged;
  }
  bool placed(Operation *op) noexcept {  // false: the send was placed before
    if (!std::exchange(op->carry.unplaced, false)) return false;
    ISTHMUS_ASSERT(unstaged != 0, "a send that was left for later is counted");
    --unstaged;
    if (std::exchange(op->carry.starved, false)) --starved[is_small(op)];
    return true;
  }
  // The sends behind this one wait as well, so this send gets the memory that becomes free.
  void starve(Operation *op) noexcept {
    if (!std::exchange(op->carry.starved, true)) ++starved[is_small(op)];
  }
  // A send of the same rank and tag is not out yet.
  std::optional<std::pair<int, int>> starting;  // rank and tag of a send that has left `taking` and is not in its link yet
  bool behind_another(const Operation *op) const noexcept {
    const std::pair<int, int> mine{op->call.root, op->call.tag};
    if (starting == mine) return true;
    for (const Operation *o = taking.head; o; o = o->message.next)
      if (std::pair(o->call.root, o->call.tag) == mine) return true;
    return false;
  }

  // Receives behind gates, in the order of their tickets.
  Operation *gated = nullptr, **gated_tail = &gated;
  uint64_t last_ticket = 0;
  void put_behind_gates(Operation *op) noexcept {
    ISTHMUS_ASSERT(op->carry.ticket.load(std::memory_order_relaxed) > last_ticket,
                   "gates open in the order of their tickets");
    last_ticket = op->carry.ticket.load(std::memory_order_relaxed);
    op->carry.next = nullptr;
    *gated_tail = op;
    gated_tail = &op->carry.next;
  }
  void pass_gate() noexcept {  // the first gate has been opened
    ISTHMUS_ASSERT(gated->carry.arrived.load(std::memory_order_relaxed), "a gate opens when its message has come");
    gated = gated->carry.next;
    if (!gated) gated_tail = &gated;
  }
  void forget_gates() noexcept {
    gated = nullptr;
    gated_tail = &gated;
  }
};

// MessageDevice copies a rank's messages from and to the rank's device. `copier` is null where the rank has no device, and once the rank has left.
struct MessageDevice {
  std::unique_ptr<DeviceCopier> copier;
  bool gates = true;                     // the device's streams can wait for the host
  std::atomic<bool> stages_lost{false};  // the device may still come to any of the pinned memory
};

class MessageTable {
 public:
  using State = Guarded<MatchState, SpinLock>;
  explicit MessageTable(RankCore &core) noexcept : core_(core) {}
  State::Held lock() noexcept { return state_.lock(); }

  uint64_t next_id() noexcept { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  // How many messages wait for the thread with the right to execute: those in `taking`, `granting`, `landing` and
  // `exchanging`.
  uint32_t moving() const noexcept { return moving_.load(std::memory_order_acquire); }
  void begin_moving(OperationList &list, Operation *op) noexcept {
    list.append(op);
    moving_.fetch_add(1, std::memory_order_release);
  }
  void end_moving() noexcept {
    [[maybe_unused]] const uint32_t before = moving_.fetch_sub(1, std::memory_order_release);
    ISTHMUS_ASSERT(before != 0, "a message that stops waiting has waited");
  }
  void wait_for_place(MatchState &s, Operation *op) noexcept {
    begin_moving(s.granting, op);
    core_.wake();
  }
  // The message of a receive in device memory is there. The device worker or the caller submits the receive's copy, or the receive's gate opens.
  void landed(MatchState &s, Operation *op) noexcept {
    begin_moving(s.landing, op);
    op->carry.arrived.store(true, std::memory_order_release);
    if (op->carry.port == Port::Worker) want_worker();
    core_.wake();
  }

  // The thread that drives calls the device worker once. The worker looks at all that waits for the worker.
  void want_worker() noexcept { worker_wanted_.store(true, std::memory_order_release); }
  bool worker_wanted() noexcept { return worker_wanted_.exchange(false, std::memory_order_acq_rel); }
  void worker_called() noexcept { worker_called_.store(true, std::memory_order_relaxed); }
  void worker_came() noexcept { worker_called_.store(false, std::memory_order_relaxed); }
  bool worker_is_called() const noexcept { return worker_called_.load(std::memory_order_relaxed); }

  std::atomic<uint32_t> slot_waiters{0};  // sends that wait for a slot

 private:
  RankCore &core_;
  State state_;
  std::atomic<uint32_t> moving_{0};
  std::atomic<bool> worker_wanted_{false}, worker_called_{false};
  std::atomic<uint64_t> next_id_{0};
};

}  // namespace isthmus::messages
