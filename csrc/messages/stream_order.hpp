// Messages of device memory on a user's stream, where a thread has to see to the order inside its call: a send that found no pinned memory,
// a receive that has no gate. Such a thread waits in the call until the copy can be submitted (settle()).
//
// Thread rules: hold() and order_now() with the message lock; the rest without.
#pragma once

#include "messages/message_copies.hpp"

namespace isthmus::messages {

class StreamOrder {
 public:
  StreamOrder(RankCore &core, MessageTable &table, MessagePlaces &places, SlotReceives &slots, MessageCopies &copies,
              MessageDevice &device) noexcept
      : core_(core), table_(table), places_(places), slots_(slots), copies_(copies), device_(device) {}

  // What `stream` gets from now on comes behind the message that `op`, a receive which was to be ordered later, brings. Waits for the message
  // where the device has no gates, or no pinned memory is free. What else goes wrong fails the communicator.
  void order(Operation *op, void *stream);
  // This thread has to see to it before its call returns. `stream`: what comes behind a receive.
  void hold(Operation *op, void *stream) noexcept;
  // After the submissions of this thread, of all ranks: waits for what hold() has named.
  static void settle() noexcept;

 private:
  void order_part(Operation *op, void *stream) noexcept;
  bool order_now(Operation *op, void *stream);  // false: it cannot be ordered yet
  bool stage_posted(Operation *op) noexcept;
  bool may_settle(const Operation &op) const noexcept;
  bool settle_one(Operation *op, void *stream) noexcept;  // false: not yet

  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotReceives &slots_;
  MessageCopies &copies_;
  MessageDevice &device_;
};

}  // namespace isthmus::messages
