// Copies of sends from device memory that had to wait: for a receive slot, or for pinned memory. The device worker submits them, or who is
// about to put a gate on the device: no gate may stand before the copy of a send, since on a device with one hardware queue the gate would
// hold the copy that a peer waits for.
//
// Thread rules: with the message lock, but where a function takes the MatchState.
#pragma once

#include "messages/matcher.hpp"

namespace isthmus::messages {

class MessageCopies {
 public:
  MessageCopies(RankCore &core, MessageTable &table, MessagePlaces &places, SlotSends &sends, SlotReceives &slots,
                MessageDevice &device) noexcept
      : core_(core), table_(table), places_(places), sends_(sends), slots_(slots), device_(device) {}

  // A send has found neither slot nor pinned memory.
  void wait(Operation *op) noexcept;
  // Those that wait for a slot go another way. False: there is no pinned memory for one of them. A group's are left: its receive waits for
  // them inside the call. Throws what the runtime throws.
  bool submit_all(const Operation *behind);
  // Takes the message lock itself. As far as there is pinned memory: who waited for it here might wait for a peer that is to come to the
  // collective first.
  void submit_before(const Operation *op) noexcept;
  bool all_submitted() const noexcept {  // of the whole process
    return core_.context->staging().unplaced_sends().load(std::memory_order_acquire) == 0;
  }
  void forget() noexcept;  // after a failure, without the lock: those of other communicators wait for these no more
  // By the device worker; takes the message lock itself. True: some wait for pinned memory, so come again.
  bool carry() noexcept;

 private:
  bool submit(Operation *op);  // false: no pinned memory is free for it
  Operation *next(bool (&memory)[2], bool &later) noexcept;
  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotSends &sends_;
  SlotReceives &slots_;
  MessageDevice &device_;
};

}  // namespace isthmus::messages
