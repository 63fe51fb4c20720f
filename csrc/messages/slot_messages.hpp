// Messages through receive slots: no processor touches such a message. p2p/recv_slots.hpp counts the slots; this file moves the bytes.
//
//   sender                                receiver
//   numbers the send                      numbers the receive: slot `number` is the receive's
//   its device copies into the slot
//   Placed, by the link      --------->   matches
//                                         its device copies from the slot
//                            <---------   has_left(): the slot is free again (Mailbox::landed)
//
// Both ranks tell such a message by tag and size alone, so both number the same messages. A large message is several messages, its parts.
//
//   the receive                          its copy
//   on a stream, its number is known     stands behind a gate, and reads the slot
//   on a stream, else                    stands behind a gate, and reads memory of its own; a processor brings the message from its slot
//   without a stream                     is submitted when the message has come, and reads the slot
//   into host memory                     a processor brings the message from its slot
//
// Where no slot is free, the message goes by the link: from the user's host memory, or from pinned memory of the sender's. So a send need not wait
// for its receive. A receive behind a gate gets the message into its slot. Any other receive gets the message where the receive needs the message.
// The receives of a group count as called before the group's sends are submitted.
#pragma once

#include <vector>

#include "messages/message_table.hpp"

namespace isthmus::messages {

struct TheirSlots {  // the receive slots that another rank has for this one
  uint32_t slots = 0;
  std::byte *there = nullptr;  // where this rank's device finds the first
};
inline constexpr uint32_t kMostRecvSlots = 32;  // for each rank
// Which of the parts of the receive slots of `owner` is the one for `sender`. Both are places among the ranks that share memory.
constexpr uint64_t slots_of(int owner, int sender) noexcept {
  return static_cast<uint64_t>(sender < owner ? sender : sender - 1);
}

// Which messages go through slots, and how long messages are cut. The same on all ranks.
class PartSizes {
 public:
  // `bytes`: of a slot, and of the longest message in one part; 0: no rank works on a device's memory.
  explicit PartSizes(uint64_t bytes) noexcept : bytes_(bytes) {}
  uint64_t bytes() const noexcept { return bytes_; }
  bool cuts(uint64_t message) const noexcept { return bytes_ != 0 && message > bytes_; }
  uint64_t of(DType dtype) const noexcept {  // of a message of several parts
    const uint64_t element = dtype_size(dtype);
    return bytes_ == 0 ? 0 : std::max(bytes_ / element, uint64_t{1}) * element;
  }
  // Both sides come to the same answer: a message and its receive that differ in size fail the communicator.
  bool take_slot(int tag, uint64_t message) const noexcept { return tag == 0 && message > 0 && message <= bytes_; }
  bool take_slot(const Operation *op) const noexcept { return take_slot(op->call.tag, op->call.bytes); }
  uint64_t slots_of(const Operation &op) const noexcept;  // how many of the message's parts go through slots

 private:
  const uint64_t bytes_;
};

// The slots that other ranks have for this one.
//
// Thread rules: put() and worth_waiting() are called by the thread that submits copies. The rest any thread. A function that takes the MatchState
// needs the match lock.
class SlotSends {
 public:
  SlotSends(RankCore &core, MessageTable &table, PartSizes sizes, int64_t group_wait_ns)
      : core_(core), table_(table), sizes_(sizes), group_wait_ns_(group_wait_ns), theirs_(core.peers.size()) {}
  void fix(const std::vector<TheirSlots> &theirs);  // by rank; before the first operation

  void number(MatchState &, Operation *op) noexcept;  // in the order of the calls
  bool is_free(const Operation *op) const noexcept { return theirs_[op->call.root].free(op->message.slot.number); }
  bool put(Operation *op) noexcept;  // false: the send's slot is not free
  bool worth_waiting(const Operation *op) noexcept;
  uint16_t slot_of(const Operation *op) const noexcept {
    return static_cast<uint16_t>(theirs_[op->call.root].slot(op->message.slot.number));
  }
  bool has_room_for_waiter() noexcept;
  bool reaches(int peer) const noexcept { return theirs_[static_cast<size_t>(peer)].reached(); }

 private:
  RankCore &core_;
  MessageTable &table_;
  const PartSizes sizes_;
  const int64_t group_wait_ns_;
  std::vector<p2p::SendSlots> theirs_;  // by rank
};

// The slots that this rank has for other ranks.
//
// Thread rules: any thread. A function that takes the MatchState needs the match lock.
class SlotReceives {
 public:
  SlotReceives(RankCore &core, MessageTable &table, PartSizes sizes) noexcept : core_(core), table_(table), sizes_(sizes) {}
  // Before the first operation. `mine`: where in the arena this rank's slots begin, `slots` for each rank.
  void fix(uint64_t mine, uint32_t slots);
  // Takes the access to these receive slots away from this process until a processor has to copy a message there.
  void guard(std::vector<std::span<std::byte>> slots);
  static void touch(MatchState &s) noexcept;  // gives the access back
  bool written_by(int q) const noexcept;  // rank `q`'s device may write to the slots; a rank of the host sends by the link
  void announce(Operation *op) noexcept;  // of a receive of a group, before anything of the group is submitted

  bool claimable(const MatchState &s, const Operation *op) const noexcept;  // the number is known, and a gate is possible
  void claim(MatchState &s, Operation *op) noexcept;                        // the receive is called
  bool claim_posted(MatchState &s, Operation *op) noexcept;                 // a receive called before; true: it has its slot
  void stand_apart(MatchState &s, Operation *op) noexcept;
  void match(MatchState &s, Operation *op, int source) noexcept;           // the message, or its announcement, has come
  bool may_come(const MatchState &s, const Operation *op) const noexcept;  // by the link or a processor: the slot is empty
  void submitted(MatchState &s, const Operation *op) noexcept;             // the copy from the slot is submitted
  // A message comes by the link. False: the two sides have not counted alike, and op->end.text says so.
  bool begin(MatchState &s, Operation *op) noexcept;
  // The message lies in that slot. False: as begin().
  bool lies_there(MatchState &s, Operation *op, uint32_t slot) noexcept;
  // This processor brings the message from its slot to the receive's place. The receive has left `granting` before. True: the operation is over.
  bool bring(Operation *op) noexcept;
  void has_left(Operation *op) noexcept;  // the message has left its slot, and the sender is told

 private:
  bool is_its_turn(Operation *op) const;
  static void read_slot(MatchState &s, Operation *op, int source, uint64_t number) noexcept;
  static void leave(MatchState &s, Operation *op) noexcept;

  RankCore &core_;
  MessageTable &table_;
  const PartSizes sizes_;
};

}  // namespace isthmus::messages
