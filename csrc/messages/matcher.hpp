// Matcher matches sends and receives by (source, tag), in the order sent.
//
// A small message travels with its data, as far as credit allows. The message is put aside where no receive waits for the message, or where the
// receive's place is not free. A large message is announced. The data of a large message flows straight into the receive's memory, once there is a
// receive. Announcements and small messages keep their order on a link, so matching is in order.
//
//   sender                                   receiver
//   small:  Message, with data   ------->    goes to the receive that waits, or aside
//   in a receive slot:  Placed   ------->    the device copies the message from the slot
//   large:  RequestToSend        ------->    goes to the receive that waits, or is noted
//                                <-------    ClearToSend, when the receive has a place
//   MessageData                  ------->    goes into the receive's memory
//
// Thread rules: any thread. accept() and received() are called by a thread that holds a link's turn.
#pragma once

#include <string>

#include "messages/message_places.hpp"
#include "messages/message_table.hpp"
#include "messages/slot_messages.hpp"

namespace isthmus::messages {

enum class SendTurn : uint8_t { Awaits, Has };

class Matcher {
 public:
  Matcher(RankCore &core, MessageTable &table, MessagePlaces &places, SlotSends &sends, SlotReceives &slots,
          MessageDevice &device) noexcept
      : core_(core), table_(table), places_(places), sends_(sends), slots_(slots), device_(device) {}

  // The bytes of a send are out of the device, or the send is in host memory. A send that awaits its turn waits in `taking` for the sends
  // before it.
  void start_send(Operation *op, SendTurn turn) noexcept;
  // A receive is called. False: the receive's place on the device is not known, and the receive has no other place.
  bool start_recv(Operation *op) noexcept;
  // Takes a receive out of `granting`. The receive's place is free now: `piece`, or the place that the receive has.
  void place(Operation *op, const p2p::Piece *piece) noexcept;
  static bool has_place(const SlotReceives &slots, const MatchState &s, const Operation *op) noexcept {
    return !on_stage(op) || op->message.place.own || (op->message.slot.in_slot && slots.may_come(s, op));
  }

  link::Accept accept(const link::FrameHeader &h, std::byte *&to);
  void received(const link::FrameHeader &h);
  // Ends every operation that is still in a list. Called after the links have been cancelled.
  void end_all(Code code) noexcept;

 private:
  enum class Encounter : uint8_t { Goes, Over, Wrong };  // of a receive and a message. Wrong: op->end.text says why
  link::FrameHeader header(const Operation &op, link::FrameKind kind, int peer, uint64_t id) const noexcept;
  Encounter meet(MatchState &s, Operation *op,
                 UnexpectedMessage &m) noexcept;  // a receive that is called meets a message that waits
  void match(MatchState &s, Operation *op, int source) noexcept;
  // A receive that meets a message of another size or type ends in an error that names both. False: op->end.text says so.
  bool fits(Operation *op, int source, uint64_t total, uint64_t whole, uint8_t dtype) const noexcept;
  void end_wrong(Operation *op, std::string text) noexcept;
  void hold_aside(MatchState &s, Operation *op) noexcept;  // the whole message is there, but no place for the message
  void take_aside(MatchState &s, Operation *op, const UnexpectedMessage &from) noexcept;
  bool grant(MatchState &s, Operation *op, int source,
             uint64_t id) noexcept;  // the announced message may come. False: see op->end.text
  void clear_to_send(const Operation &op, int source, uint64_t id) noexcept;
  link::Accept accept_new(const link::FrameHeader &h, std::byte *&to);
  link::Accept accept_data(const link::FrameHeader &h, std::byte *&to) noexcept;
  static link::Accept put_aside(MatchState &s, const link::FrameHeader &h, Operation *claims, std::byte *&to);
  void send_data(const link::FrameHeader &h) noexcept;
  void count(const link::FrameHeader &h) noexcept;
  static void sent(link::Outgoing &out);
  Operation *take_any(bool &was_unplaced) noexcept;  // for end_all()

  RankCore &core_;
  MessageTable &table_;
  MessagePlaces &places_;
  SlotSends &sends_;
  SlotReceives &slots_;
  MessageDevice &device_;
};

}  // namespace isthmus::messages
