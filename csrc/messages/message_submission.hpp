// MessageSubmission begins the messages of one rank. Long messages are cut into parts. Messages of device memory are brought to pinned memory or a
// receive slot.
//
// Who submits the copies:
//
//   send                             the caller, inside the call
//   receive on a user's stream       the caller, behind a gate that opens when the message has come
//   the same, without a gate         the caller, when the message has come: the call returns only then. The device has no gates, or pinned memory
//                                    is short for a large message
//   receive without a stream         the device worker, when the message has come
//
// A receive without a stream has no gate. In the one queue of a device the gate could stand before the copy of a send for which the peer waits.
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
  void submit(Operation *op) noexcept;  // `op` is fully described; the communicator may have failed

 private:
  using Numbered = std::unique_lock<std::recursive_timed_mutex>;
  struct OnDevice;  // of a message in a device's memory: the message lock, and the device entered
  void submit_one(Operation *op) noexcept;
  void submit_parts(Operation *op) noexcept;
  void submit_part(Operation *op, MessageTies *ties) noexcept;
  Operation *make_part(Operation *op, uint32_t i, uint64_t size) noexcept;
  Numbered in_order(const Operation &op) noexcept;
  void send_from_device(Operation *op, MessageTies *ties) noexcept;
  void recv_to_device(Operation *op, MessageTies *ties) noexcept;
  bool expect(Operation *op) noexcept;  // begins a receive behind a gate. False: the receive has no place behind a gate

  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotSends &sends_;
  Matcher &matcher_;
  MessageCopies &copies_;
  StreamOrder &streams_;
  MessageDevice &device_;
  const PartSizes sizes_;
  std::recursive_timed_mutex order_[2];  // of sends and of receives: the order of their numbers is that of their calls
};

}  // namespace isthmus::messages
