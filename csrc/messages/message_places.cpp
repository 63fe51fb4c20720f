#include "messages/message_places.hpp"

#include <new>

#include "base/copy.hpp"

namespace isthmus::messages {

using p2p::Share;

bool MessagePlaces::stage(Operation *op, Share share) noexcept {
  const auto piece = pool_.take(op->call.bytes, share);
  if (piece) give_to(op, *piece);
  return piece.has_value();
}

std::optional<p2p::Piece> MessagePlaces::take_ahead(const Operation *op) noexcept {
  const uint64_t bytes = op->call.bytes;
  if (!is_small(op)) return pool_.take(bytes, Share::Ahead);
  const bool wide = table_.lock()->chain.wide();
  return pool_.take(wide ? bytes : UnexpectedMessages::kData, Share::SmallAhead, !wide);
}

bool MessagePlaces::stage_ahead(Operation *op) noexcept {
  const auto piece = take_ahead(op);
  if (piece) give_to(op, *piece);
  else op->message.place.inherits = is_small(op);
  return op->message.place.own_or_will();
}

void MessagePlaces::spill(Operation *op) noexcept {
  constexpr uint64_t kMost = 64 << 20;
  if (!op->message.place.own || !is_small(op) || 2 * pool_.used(Share::SmallSend) < pool_.of(Share::SmallSend)) return;
  const uint64_t bytes = op->call.bytes;
  if (core_.peers[op->call.root].send_credit.has_for_message(bytes)) return;
  auto &spilled = core_.context->staging().spilled();
  if (spilled.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kMost) {
    op->carry.spilled.reset(new (std::nothrow) std::byte[bytes]);
    if (op->carry.spilled) {
      copy_bytes(op->carry.spilled.get(), core_.context->arena().base() + op->message.place.piece.offset, bytes);
      return unstage(op);
    }
  }
  spilled.fetch_sub(bytes, std::memory_order_relaxed);
}

void MessagePlaces::end_spill(Operation *op) noexcept {
  core_.context->staging().spilled().fetch_sub(op->call.bytes, std::memory_order_relaxed);
  op->carry.spilled.reset();
}

// A device that has not come to the message's copy may still copy there. Such a piece is given to no message any more.
void MessagePlaces::unstage(Operation *op) noexcept {
  op->message.place.own = false;
  const bool send = op->call.collective == Collective::Send;
  const DeviceCopier *const copier = device_.copier.get();
  const bool copying =
      device_.stages_lost.load(std::memory_order_relaxed) || (op->carry.ticket.load(std::memory_order_relaxed) != 0 &&
                                                              copier && !(send ? copier->taken(*op) : copier->landed(*op)));
  if (copying) pool_.lose(op->message.place.piece);
  else pool_.give(op->message.place.piece);
}

}  // namespace isthmus::messages
