// StreamOrder keeps the order of messages of device memory on a user's stream, where a thread has to see to the order inside its call. Such messages
// are a send that found no pinned memory, and a receive that has no gate. The thread waits in the call until the copy can be submitted (settle()).
//
// Thread rules: hold() and order_now() with the message lock. The rest without.
#pragma once

#include "messages/message_copies.hpp"

namespace isthmus::messages {

class StreamOrder {
 public:
  StreamOrder(RankCore &core, MessageTable &table, MessagePlaces &places, SlotReceives &slots, MessageCopies &copies,
              MessageDevice &device) noexcept
      : core_(core), table_(table), places_(places), slots_(slots), copies_(copies), device_(device) {}

  // `op` is a receive that was to be ordered later. What `stream` gets from now on comes behind the receive's message. Waits for the message where
  // the device has no gates, or where no pinned memory is free. Any other trouble fails the communicator.
  void order(Operation *op, void *stream);
  // This thread has to see to `op` before its call returns. `stream` comes behind `op`.
  void hold(Operation *op, void *stream) noexcept;
  // Waits for the operations that hold() has named. Called after the submissions of this thread, of all ranks.
  static void settle() noexcept;

 private:
  void order_all(Operation *op, void *stream) noexcept;
  bool order_now(Operation *op, void *stream, MessageTies &ties);  // false: `op` cannot be ordered yet
  bool stage_posted(Operation *op) noexcept;
  bool may_settle(const Operation &op) const noexcept;
  bool settle_one(Operation *op, void *stream, LaneTies &ties) noexcept;  // false: not yet. `stream` is still to be ordered
  void close(const Operation &last, void *stream, LaneTies &ties) noexcept;

  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotReceives &slots_;
  MessageCopies &copies_;
  MessageDevice &device_;
};

}  // namespace isthmus::messages
