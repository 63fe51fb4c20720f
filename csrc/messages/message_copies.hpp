// Some copies of sends from device memory have to wait, for a receive slot or for pinned memory. The device worker submits these copies, or a thread
// that is about to put a gate on the device.
//
// No gate may stand before the copy of a send. On a device with one hardware queue the gate would hold the copy for which a peer waits:
//
//   rank 0's one queue                     rank 1's one queue
//   gate: receive from rank 1              gate: receive from rank 0
//   copy: send to rank 1                   copy: send to rank 0
//   (each gate waits for the copy behind the other gate)
//
// Thread rules: with the message lock, but where a comment says otherwise.
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
  // Submits all copies that wait. Sends that wait for a slot go by pinned memory instead. False: there is no pinned memory for one of them. The
  // sends of a group are left: the group's receive waits for them inside the call. Throws what the runtime throws.
  bool submit_all(const Operation *behind);
  // Takes the message lock itself. Submits as far as there is pinned memory. A thread that waited for pinned memory here might wait for a peer
  // that is to come to the collective first.
  void submit_before(const Operation *op) noexcept;
  bool all_submitted() const noexcept {  // of the whole process
    return core_.context->staging().unplaced_sends().load(std::memory_order_acquire) == 0;
  }
  void forget() noexcept;  // after a failure, without the lock: sends of other communicators wait for these sends no more
  // Called by the device worker. Takes the message lock itself. True: some copies wait for pinned memory, so the worker comes again.
  bool carry() noexcept;

 private:
  bool submit(Operation *op);  // false: no pinned memory is free for the send
  Operation *next(bool (&memory)[2], bool &later) noexcept;
  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotSends &sends_;
  SlotReceives &slots_;
  MessageDevice &device_;
};

}  // namespace isthmus::messages
