// Point to point: matching by (source, tag) in the order sent. A small message travels with its data, as far as credit allows; it is put
// aside where no receive waits for it, or the receive's place is not free. A large one is announced, and its data flows straight into the
// receive's memory once there is one. Announcements and small messages keep their order on a link, so matching is in order.
//
//   sender                                   receiver
//   small:  Message, with data   ------->    to the receive that waits, or aside
//   in a receive slot:  Placed   ------->    the device copies it from there
//   large:  RequestToSend        ------->    to the receive that waits, or noted
//                                <-------    ClearToSend, when the receive has a place
//   MessageData                  ------->    into the receive's memory
//
// Thread rules: any thread; accept() and received() by those who hold a link's turn.
#pragma once

#include <string>

#include "messages/message_places.hpp"
#include "messages/message_table.hpp"
#include "messages/slot_messages.hpp"

namespace isthmus::messages {

class Matcher {
 public:
  Matcher(RankCore &core, MessageTable &table, MessagePlaces &places, SlotSends &sends, SlotReceives &slots,
          MessageDevice &device) noexcept
      : core_(core), table_(table), places_(places), sends_(sends), slots_(slots), device_(device) {}

  // The bytes of a send are out, or it is in host memory. A `fresh` one waits for those before it, in taking.
  void start_send(Operation *op, bool fresh) noexcept;
  // A receive is called. False: its place on the device is not known, and it has no other.
  bool start_recv(Operation *op) noexcept;
  // Takes a receive out of granting, whose place is free now: `piece`, or what it has.
  void place(Operation *op, const p2p::Piece *piece) noexcept;
  static bool has_place(const SlotReceives &slots, const MatchState &s, const Operation *op) noexcept {
    return !on_stage(op) || op->place.own || (op->slot.in_slot && slots.may_come(s, op));
  }

  link::Accept accept(const link::FrameHeader &h, std::byte *&to);
  void received(const link::FrameHeader &h);
  // After the links have been cancelled: every operation still in a list is ours to end.
  void end_all(Code code) noexcept;

 private:
  enum class Encounter : uint8_t { Goes, Over, Wrong };  // of a receive and a message: see op->text where it is wrong
  link::FrameHeader header(const Operation &op, link::FrameKind kind, int peer, uint64_t id) const noexcept;
  Encounter meet(MatchState &s, Operation *op,
                 UnexpectedMessage &m) noexcept;  // a receive that is called, a message that waits
  void match(MatchState &s, Operation *op, int source) noexcept;
  // A receive that meets a message of another size or type ends in an error that names both. False: op->text says so.
  bool fits(Operation *op, int source, uint64_t total, uint64_t whole, uint8_t dtype) const noexcept;
  static bool wants(const Operation *op, int source, int32_t tag, uint32_t part) noexcept;
  void end_wrong(Operation *op, std::string text) noexcept;
  void hold_aside(MatchState &s, Operation *op) noexcept;  // the whole message is there, but no place for it
  void take_aside(MatchState &s, Operation *op, const UnexpectedMessage &from) noexcept;
  bool grant(MatchState &s, Operation *op, int source,
             uint64_t id) noexcept;  // the announced message may come. False: see op->text
  void clear_to_send(const Operation &op, int source, uint64_t id) noexcept;
  link::Accept accept_new(const link::FrameHeader &h, std::byte *&to);
  link::Accept accept_data(const link::FrameHeader &h, std::byte *&to) noexcept;
  static link::Accept put_aside(MatchState &s, const link::FrameHeader &h, Operation *claims, std::byte *&to);
  void send_data(const link::FrameHeader &h) noexcept;
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
