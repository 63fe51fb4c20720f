// How the messages of one rank begin. Longer ones are cut into parts; those of device memory are brought to pinned memory or a receive slot.
//
// Who submits the copies. A send's: the caller, inside the call. A receive's on a user's stream: the caller too, behind a gate that opens when
// the message has come. Where the device has no gates, or pinned memory is short for a large message, the call returns when the message has
// come. A receive's without a stream: the device worker, when the message has come. A gate there could stand, in the one queue of a device,
// before the copy of a send that the peer waits for.
//
// Thread rules: any thread, without a lock.
#pragma once

#include <mutex>

#include "messages/matcher.hpp"
#include "messages/message_copies.hpp"
#include "messages/stream_order.hpp"

namespace isthmus::messages {

class MessageSubmission {
 public:
  MessageSubmission(RankCore &core, MessageTable &table, MessagePlaces &places, SlotSends &sends, Matcher &matcher,
                    MessageCopies &copies, StreamOrder &streams, MessageDevice &device, PartSizes sizes) noexcept
      : core_(core),
        table_(table),
        places_(places),
        sends_(sends),
        matcher_(matcher),
        copies_(copies),
        streams_(streams),
        device_(device),
        sizes_(sizes) {}
  void submit(Operation *op) noexcept;  // fully described; the communicator may have failed

 private:
  using Numbered = std::unique_lock<std::recursive_timed_mutex>;
  void submit_one(Operation *op) noexcept;
  void submit_parts(Operation *op) noexcept;
  Operation *make_part(Operation *op, uint32_t i, uint64_t size) noexcept;
  Numbered in_order(const Operation &op) noexcept;
  void send_from_device(Operation *op) noexcept;
  void recv_to_device(Operation *op) noexcept;
  bool expect(Operation *op) noexcept;  // a receive behind a gate; false: it has none

  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotSends &sends_;
  Matcher &matcher_;
  MessageCopies &copies_;
  StreamOrder &streams_;
  MessageDevice &device_;
  const PartSizes sizes_;
  std::recursive_timed_mutex order_[2];  // sends, receives: the order of their numbers is that of their calls
};

}  // namespace isthmus::messages
