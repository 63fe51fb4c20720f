// Receive slots: how a sender's device writes a message straight to where the receiver's device reads it.
//
// Between two ranks that share memory, one of which works on a device, the receiver has K slots for the sender at a fixed place.
// Both sides number the messages that may go through slots, in the order in which sends and receives match. Message n has slot
// (n - 1) mod K. The receiver publishes two numbers in shared memory:
//
//   landed   all messages up to this number have left their slots
//   asked    all messages up to this number have been asked for: their receives are called, or are about to be called
//
//   sender                                        receiver
//   n = number()                                  claim(): the receive that is called next gets number n, if it can be known
//   free(n), which is n <= landed + K             asked = n
//   its device writes slot (n - 1) mod K
//   frame "placed, slot s"          --------->    match(): message n has come; its slot must be s
//                                                 the device, or a processor, copies it from the slot to the user's memory
//   free(n + K)                     <---------    leave(): landed = n
//
// Where no slot is free the message goes by the link. The sender waits for its slot only where the receive has been called: such a
// slot is emptied by the receiver alone.
//
// Nothing here knows a device, a link or a communicator. The classes count; their owners move bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace isthmus::p2p {

// What one send or receive has to do with slots. Part of its operation; reset by assigning a fresh one.
struct SlotUse {
  uint64_t number = 0;    // of the message; a receive's: from its match until the message has left its slot. 0: none
  uint64_t expected = 0;  // a receive's: the number that its message will have; 0: not known before the message comes
  bool in_slot = false;   // a receive's: its message is read from the slot
  bool counted = false;   // a receive from any rank that waits: it may take a message of each rank
  bool promised = false;  // a receive that promise() has counted and that is not called yet
  bool apart = false;     // a receive that waits behind a gate and has memory of its own
};

// The slots that another rank has for this one.
//
// Thread rules: number() by one thread at a time (the match lock). worth_waiting() and took() by one thread at a time (who submits
// copies). free(), place() and slot() by any thread.
class SendSlots {
 public:
  SendSlots() = default;
  // `count`: 0: there are none. `first`: where this rank's device finds the first; null: it does not reach them. `slot_bytes`: of each.
  // `asked`, `landed`: the receiver's numbers, which live as long as this.
  void open(uint32_t count, std::byte *first, uint64_t slot_bytes, const std::atomic<uint64_t> &asked,
            const std::atomic<uint64_t> &landed) noexcept;

  bool any() const noexcept { return count_ != 0; }
  bool reached() const noexcept { return first_ != nullptr; }
  uint64_t number() noexcept { return ++numbered_; }  // of the message that matches next
  bool free(uint64_t number) const noexcept;          // the device may write there now
  uint32_t slot(uint64_t number) const noexcept { return static_cast<uint32_t>((number - 1) % count_); }
  std::byte *place(uint64_t number) const noexcept { return first_ + slot(number) * slot_bytes_; }
  void took(int64_t now_ns) noexcept { moved_ns_ = now_ns; }  // a message goes into a slot

  struct Wait {
    int64_t now_ns = 0;
    int64_t patience_ns = 0;  // since the slots last took or lost a message, or another receive was called
    bool grouped = false;   // the send ends a group: the receiver is likely to come to its own group at about the same time
    int64_t called_ns = 0;  // when the group was submitted, and
    int64_t group_ns = 0;   // how long the send waits for the receive to be called
  };
  // Whether a send whose slot is not free should wait for it. The receive has been called, so the slot empties without anything that this
  // rank has yet to do. It may still take long where the receiver's device has one queue, in which another gate stands before. So the patience.
  bool worth_waiting(uint64_t number, const Wait &wait) noexcept;

 private:
  uint32_t count_ = 0;
  std::byte *first_ = nullptr;
  uint64_t slot_bytes_ = 0;
  const std::atomic<uint64_t> *asked_ = nullptr, *landed_ = nullptr;
  uint64_t numbered_ = 0;
  uint64_t most_asked_ = 0, seen_landed_ = 0;
  int64_t moved_ns_ = 0;
};

// The slots that this rank has for all others.
//
// Thread rules: all calls under one lock (the match lock). The two published numbers are read by the senders at any time.
class RecvSlots {
 public:
  static constexpr int kAnySource = -1;

  // `count` slots of `slot_bytes` for each rank that open() names; 0: there are none. Before the first message.
  void resize(int ranks, uint32_t count, uint64_t slot_bytes);
  // `offset`: where the first slot for `source` lies, not 0. The numbers are published in `asked` and `landed`.
  void open(int source, uint64_t offset, std::atomic<uint64_t> &asked, std::atomic<uint64_t> &landed) noexcept;
  bool any() const noexcept { return count_ != 0; }
  bool has(int source) const noexcept { return of(source).offset != 0; }
  uint64_t place(int source, uint64_t number) const noexcept { return of(source).offset + slot(number) * slot_bytes_; }
  uint32_t slot(uint64_t number) const noexcept { return static_cast<uint32_t>((number - 1) % count_); }

  // What follows is of messages that may go through slots: both sides tell these by tag and size alone.

  // So many receives from `source` are about to be called; each then has SlotUse::promised.
  void promise(int source, uint64_t receives) noexcept;
  // Whether a receive that is called now knows its number, and may wait for its slot behind a gate.
  bool claimable(int source) const noexcept;
  // A receive is called. `gated`: its copy stands behind a gate. `own`: it has memory of its own, so it needs no slot. A gated receive
  // without such memory must be claimable(). `source`: or kAnySource.
  void claim(SlotUse &use, int source, bool gated, bool own) noexcept;
  // A receive that has been called gets a gate and memory of its own.
  void stand_apart(SlotUse &use, int source) noexcept;
  // A receive that has been called, and whose message has not come, gets a gate at its slot. False: it may not, or its number is not known.
  bool take_slot(SlotUse &use, int source) noexcept;
  // Message, or word of it, has come from `sender`: use.number is set. `source`: as in claim().
  void match(SlotUse &use, int source, int sender) noexcept;
  // Both sides have counted alike. After match().
  static bool as_expected(const SlotUse &use) noexcept { return use.expected == 0 || use.expected == use.number; }
  // The message's slot is empty, so that the message may be written there by a link or a processor. True where it is not read from a slot.
  bool may_come(const SlotUse &use, int sender) const noexcept;
  // The copy from the slot to the user's memory has been submitted: what the device gets later comes behind it.
  void submitted(int sender, uint64_t number) noexcept;
  // The message has left its slot, or needs none. use.number is 0 then. Nothing where it was.
  void leave(SlotUse &use, int sender) noexcept;

 private:
  struct SourceCounts {
    uint64_t offset = 0;
    uint64_t claimed = 0;   // receives that will have one of its messages, or have had it
    uint64_t promised = 0;  // and more that are about to be called
    uint64_t matched = 0;
    uint64_t landed = 0;          // up to this number all slots are free
    std::vector<uint64_t> ahead;  // and these
    uint64_t ordered = 0;         // up to this number all have left their slots, or their copies are submitted
    std::vector<uint64_t> early;  // and these
    uint32_t apart = 0;           // receives behind gates with memory of their own, whose messages have not come
    std::atomic<uint64_t> *asked_word = nullptr, *landed_word = nullptr;
  };
  SourceCounts &of(int source) noexcept { return sources_[static_cast<size_t>(source)]; }
  const SourceCounts &of(int source) const noexcept { return sources_[static_cast<size_t>(source)]; }
  // Where a device has one queue, what is submitted later waits for a gate. So message n may have a gate at its slot only if the messages
  // before it have left theirs, or their copies stand before the gate. Else message n might need the slot that such a copy is to empty.
  bool may_gate(const SourceCounts &from, uint64_t number) const noexcept { return number <= from.ordered + 1; }
  void publish_asked(SourceCounts &from) noexcept;
  static void ask_for_less(SourceCounts &from, uint64_t number) noexcept;

  uint32_t count_ = 0;
  uint64_t slot_bytes_ = 0;
  std::vector<SourceCounts> sources_;
  uint32_t any_waiting_ = 0;  // receives from any rank that wait: those called after them do not know their numbers
  uint32_t any_apart_ = 0;    // and stand behind gates, with memory of their own
};

}  // namespace isthmus::p2p
