#include "p2p/staging_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/assert.hpp"
#include "base/lock.hpp"

namespace isthmus::p2p {

std::optional<Piece> StagingPool::take(uint64_t message, Share share, bool beyond) noexcept {
  const uint64_t bytes = std::max(std::bit_ceil(message), kLeast);
  const uint64_t before = count(share).fetch_add(bytes, std::memory_order_relaxed);
  const bool room = before == 0 || before + bytes <= of(share) || beyond;
  if (room)
    if (std::optional<uint64_t> offset = spare(bytes); offset || (offset = source_.allocate(bytes)))
      return Piece{bytes, *offset, share};
  count(share).fetch_sub(bytes, std::memory_order_relaxed);
  return std::nullopt;
}

std::optional<uint64_t> StagingPool::spare(uint64_t bytes) noexcept {
  const Lock lock(lock_);
  const auto found = std::find_if(spares_.begin(), spares_.end(), [bytes](const Piece &p) { return p.bytes == bytes; });
  if (found == spares_.end()) return std::nullopt;
  const uint64_t offset = found->offset;
  *found = spares_.back();
  spares_.pop_back();
  return offset;
}

void StagingPool::give(const Piece &piece) noexcept {
  lose(piece);
  if (piece.bytes <= kMostSpare) {
    const Lock lock(lock_);
    if (spares_.size() < kSpares) {
      spares_.reserve(kSpares);
      spares_.push_back(piece);
      return;
    }
  }
  source_.free(piece.offset);
}

void StagingPool::lose(const Piece &piece) noexcept {
  [[maybe_unused]] const uint64_t before = count(piece.share).fetch_sub(piece.bytes, std::memory_order_relaxed);
  ISTHMUS_ASSERT(before >= piece.bytes, "a share has in use what is given back to it");
}

bool StagingPool::free_spares() noexcept {
  std::array<Piece, kSpares> gone;
  size_t count = 0;
  {
    const Lock lock(lock_);
    for (const Piece &spare : spares_) gone[count++] = spare;
    spares_.clear();
  }
  for (size_t i = 0; i < count; ++i) source_.free(gone[i].offset);  // a system call: not under a lock that spins
  return count != 0;
}

void PlaceChain::unlink(Place **at) noexcept {
  Place *const place = *at;
  *at = place->next;
  if (!*at) tail_ = at;
  place->next = nullptr;
  wide_ -= is_wide(*place);
}

bool PlaceChain::inherit(Place &place, uint64_t bytes) noexcept {
  Place **at = &head_;
  while (*at && (*at)->piece.bytes < bytes) at = &(*at)->next;
  Place *const from = *at;
  if (!from) return place.inherits = false;
  unlink(at);
  ISTHMUS_ASSERT(!from->heir && !place.own, "a piece has one heir, who has no piece of its own");
  from->heir = &place;
  place.piece = from->piece;
  return place.inherits = true;
}

void PlaceChain::lend(Place &place) noexcept {
  ISTHMUS_ASSERT(place.own_or_will() && !place.heir, "a piece that is lent is somebody's, and has no heir yet");
  place.next = nullptr;
  *tail_ = &place;
  tail_ = &place.next;
  wide_ += is_wide(place);
}

void PlaceChain::hand_on(Place &place) noexcept {
  if (Place *const heir = std::exchange(place.heir, nullptr)) {
    ISTHMUS_ASSERT(place.own && heir->inherits, "the piece goes from its owner to the heir");
    place.own = heir->inherits = false;
    heir->own = true;
    return;
  }
  for (Place **at = &head_; *at; at = &(*at)->next)
    if (*at == &place) return unlink(at);
}

void PlaceChain::clear() noexcept {
  head_ = nullptr;
  tail_ = &head_;
  wide_ = 0;
}

}  // namespace isthmus::p2p
