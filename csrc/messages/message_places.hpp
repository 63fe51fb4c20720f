// MessagePlaces has the pinned memory in which links find messages of device memory (p2p/staging_pool.hpp).
//
// Thread rules: any thread. A function that takes the MatchState needs the match lock.
#pragma once

#include <optional>

#include "messages/message_table.hpp"

namespace isthmus::messages {

class MessagePlaces {
 public:
  MessagePlaces(RankCore &core, MessageTable &table, MessageDevice &device)
      : core_(core),
        table_(table),
        device_(device),
        pool_(core.context->staging().source(), core.context->staging().message_shares()) {}

  // Gives the message a piece. False: the message's share has no room.
  bool stage(Operation *op, p2p::Share share) noexcept;
  bool stage_send(Operation *op) noexcept { return stage(op, is_small(op) ? p2p::Share::SmallSend : p2p::Share::Send); }
  bool stage_ahead(
      Operation *op) noexcept;  // for a receive behind a gate; a small receive inherits another's piece where none is free
  std::optional<p2p::Piece> take_ahead(const Operation *op) noexcept;
  std::optional<p2p::Piece> take(uint64_t bytes, p2p::Share share) noexcept { return pool_.take(bytes, share); }
  static void give_to(Operation *op, const p2p::Piece &piece) noexcept {
    op->message.place.piece = piece;
    op->message.place.own = true;
  }
  void give_back(const p2p::Piece &piece) noexcept { pool_.give(piece); }
  void unstage(Operation *op) noexcept;  // the message's own piece goes back
  // A small send that can only be announced leaves its piece to other messages, where these are about to find none.
  void spill(Operation *op) noexcept;
  void end_spill(Operation *op) noexcept;

  // A receive behind a gate may leave its piece to a receive behind it.
  void lend(MatchState &s, Operation *op) noexcept {
    if (is_small(op) && !op->message.slot.in_slot) s.chain.lend(op->message.place);
  }
  void hand_on(MatchState &s, Operation *op) noexcept {  // the receive's copy has landed
    if (op->carry.port == Port::Expected) s.chain.hand_on(op->message.place);
  }
  bool free_spares() noexcept { return pool_.free_spares(); }

 private:
  RankCore &core_;
  MessageTable &table_;
  MessageDevice &device_;
  p2p::StagingPool pool_;
};

}  // namespace isthmus::messages
