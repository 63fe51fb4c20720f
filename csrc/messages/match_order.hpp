// The order in which receives and messages meet, which is MPI's:
//
//   a receive is called     takes the first message that fits, in the order in which messages have come; else the receive is posted
//   a message comes         goes to the first receive that fits, in the order in which receives were called; else the message is put aside
//
// A link keeps the order of each rank's messages. So of two messages of one rank with one tag the first meets the receive that was called first.
// A long message comes in parts. The parts of a message from any rank all come from the rank of the first part.
//
// MatchOrder knows no device, link or communicator.
//
// Thread rules: all calls under one lock (the match lock).
#pragma once

#include "messages/operation_list.hpp"
#include "messages/unexpected.hpp"

namespace isthmus::messages {

struct MatchOrder {
  UnexpectedMessages unexpected;  // no receive fitted when they came
  OperationList posted;           // receives without a message

  // Whether the receive takes such a message.
  static bool fits(const Operation &receive, int source, int32_t tag, uint32_t part) noexcept {
    if (receive.call.tag != tag || receive.cut.part != part) return false;
    if (receive.call.root >= 0) return receive.call.root == source;
    return part == 0 || receive.end.parent->cut.source == source;
  }
  // A receive is called: its message, or null. The caller posts the receive then.
  UnexpectedMessage *message_for(const Operation &receive) noexcept {
    return unexpected.first([&](const UnexpectedMessage &m) { return fits(receive, m.source, m.tag, m.part); });
  }
  // A message comes: its receive, which is out of `posted` then, or null. The caller puts the message aside then.
  Operation *take_receive_for(int source, int32_t tag, uint32_t part) noexcept {
    return posted.take_first([&](const Operation *o) { return fits(*o, source, tag, part); });
  }
  // The two have met.
  static void meet(Operation &receive, int source) noexcept {
    ISTHMUS_ASSERT(receive.message.source < 0, "a receive meets one message");
    receive.message.source = source;
    if (receive.cut.whole != 0 && receive.cut.part == 0) receive.end.parent->cut.source = source;
  }
};

}  // namespace isthmus::messages
