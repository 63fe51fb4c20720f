#include "collective/rings.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "base/handles.hpp"
#include "plan/plan.hpp"

namespace isthmus::collective {

Rings::~Rings() {
  for (const uint64_t offset : take_all()) arena_.free_staging(offset);
}

void Rings::give(ArenaPart &place) noexcept {
  if (place.offset) arena_.free_staging(place.offset);
  place = {};
}

void Rings::give_all() noexcept {
  give(ring_);
  give(scratch_);
  for (const uint64_t offset : old_) arena_.free_staging(offset);
  old_.clear();
  turn_ = 0;
}

// A place that an operation has, or that a peer may read, stays until neither does.
void Rings::outgrow(ArenaPart &place, bool idle) {
  if (idle) return give(place);
  if (place.offset) old_.push_back(place.offset);
  place = {};
}

uint64_t Rings::allocate(uint64_t bytes) const {
  try {
    return arena_.allocate_staging(bytes);
  } catch (const Error &) {
    if (!reserve_) throw;
  }
  return arena_.allocate_reserve(bytes);
}

// Where there is plenty, the new place is twice the last. So a place that grows little by little is not made anew each time.
Rings::ArenaPart Rings::grow(uint64_t need, uint64_t before) const {
  if (const uint64_t twice = 2 * before; twice > need && arena_.staging_used() + twice <= arena_.staging_limit() / 4) {
    try {
      return {arena_.allocate_staging(twice), twice, 0};
    } catch (const Error &) {}  // in pieces
  }
  return {allocate(need), need, 0};
}

// Operations take turns through a ring of kRingTurn, where there is memory for such a ring. A reader finds a slot sooner once the slot has left
// the writer's second-level cache. A writer finds a slot sooner once the slot has left the readers' caches.
void Rings::grow_slots(uint64_t need, bool idle) {
  constexpr uint64_t kLeastBytes = 256 << 10;
  if (need <= ring_.bytes) return;
  const uint64_t before = ring_.bytes, limit = arena_.staging_limit();
  outgrow(ring_, idle);
  turn_ = 0;
  if (need < plan::kRingTurn && arena_.staging_used() + plan::kRingTurn <= limit / 4) {
    try {
      ring_ = grow(plan::kRingTurn, before);
    } catch (const Error &) {}  // not in one piece
  }
  if (!ring_.offset) ring_ = grow(std::max(need, std::min(kLeastBytes, limit / 16)), before);
}

// The pages of a turn are made some operations ahead, twice as many each time: one call makes many of them, and the first operation of a
// communicator that has just been made does not wait for all of them.
void Rings::make_pages(uint64_t upto) noexcept {
  constexpr uint64_t kFirst = 64 << 10;
  const uint64_t most = std::min(ring_.bytes, plan::kRingTurn);
  if (ring_.made >= std::min(upto, most)) return;
  const uint64_t end = std::min(most, std::max({upto, 2 * ring_.made, kFirst}));
  prefault(arena_.base() + ring_.offset + ring_.made, end - ring_.made);
  ring_.made = end;
}

void Rings::grow_scratch(uint64_t need, bool idle) {
  if (need <= scratch_.bytes) return;
  const uint64_t before = scratch_.bytes;
  outgrow(scratch_, idle);
  scratch_ = grow(need, std::max(need, before));
}

Rings::Room Rings::take(uint64_t slots, uint64_t scratch) {
  constexpr uint64_t kLine = 64;
  const Lock lock(mutex_);
  const bool beyond = ring_.offset && arena_.beyond(ring_.offset);  // such a ring is kept no longer than needed
  if (beyond || slots > ring_.bytes || scratch > scratch_.bytes) {
    const bool idle = lent_ == 0 && read_(last_);
    if (beyond) outgrow(ring_, idle);
    if (idle) {
      for (const uint64_t offset : old_) arena_.free_staging(offset);
      old_.clear();
    }
    try {
      grow_slots(slots, idle);
      grow_scratch(scratch, idle);
    } catch (const Error &e) {
      if (!idle || e.code() != Code::Resource) throw;
      give_all();  // the memory that was kept may be more than this operation asks for
      if (scratch) scratch_ = {allocate(scratch), scratch, 0};
      if (slots) ring_ = {allocate(slots), slots, 0};
    }
  }
  Room room;
  if (slots) {
    if (turn_ + slots > ring_.bytes) turn_ = 0;
    room.slots = ring_.offset + turn_;
    make_pages(turn_ + slots);
    turn_ += (slots + kLine - 1) / kLine * kLine;
  }
  if (scratch) {
    const uint64_t half = scratch_.bytes / 2 / kLine * kLine;
    scratch_turn_ = scratch <= half && scratch_turn_ == 0 ? half : 0;
    room.scratch = scratch_.offset + scratch_turn_;
  }
  ++lent_;
  return room;
}

Rings::Room Rings::take_beyond(uint64_t slots) {
  const Lock lock(mutex_);
  outgrow(ring_, lent_ == 0 && read_(last_));
  ring_ = {arena_.allocate_beyond(slots), slots, 0};
  turn_ = slots;
  ++lent_;
  return {ring_.offset, 0};
}

void Rings::open_reserve() noexcept {
  const Lock lock(mutex_);
  reserve_ = true;
}

void Rings::end(uint64_t sequence) noexcept {
  const Lock lock(mutex_);
  --lent_;
  last_ = std::max(last_, sequence);
}

bool Rings::give_idle() noexcept {
  if (!mutex_.try_lock()) return false;
  const Lock lock(mutex_, kLocked);
  if (lent_ != 0 || (!ring_.offset && !scratch_.offset && old_.empty()) || !read_(last_)) return false;
  give_all();
  return true;
}

bool Rings::lent() const noexcept {
  const Lock lock(mutex_);
  return lent_ != 0 || ((ring_.offset || scratch_.offset || !old_.empty()) && !read_(last_));
}

std::vector<uint64_t> Rings::take_all() noexcept {
  const Lock lock(mutex_);
  std::vector<uint64_t> all = std::move(old_);
  old_.clear();
  for (ArenaPart *place : {&ring_, &scratch_})
    if (const uint64_t offset = std::exchange(*place, {}).offset) all.push_back(offset);
  return all;
}

}  // namespace isthmus::collective
