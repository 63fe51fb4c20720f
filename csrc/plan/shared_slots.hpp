// What the templates have in common in which libraries serve some ranks and all stand on one host (shared_islands.cpp, shared_sums.cpp). Every rank
// reads the slots of every other, so what is moved crosses without a link. A device that reaches the slots of others (Request::reach) copies
// out of them. For a device that does not, the host brings the chunk to pinned scratch. The other ranks see no difference. Internal to the
// planner.
//
// Counters of a rank:
//   kCopied     the chunk lies in the rank's slot
//   kReduced    the rank has reduced its part of the sum, and the part lies in its slot where others read it
//   kConsumed   the rank has read chunk c of all slots that it reads
// Between a rank's two lists:
//   kStaged     the device has staged a chunk in the rank's slot
//   kReady      the gate: what the device takes has come, or the slot is to be filled again
//   kTaken      the device has read what it took
#pragma once

#include <cstdint>

#include "plan/takes.hpp"

namespace isthmus::plan {

// The device has staged chunk c + kAhead when it passes the gate of chunk c, which the host opens in turn c + kTurn. A reader says in turn
// c + kAhead that it has read chunk c. The chunk's writer has to know before it opens the gate of chunk c + slots - kAhead. So the reader's turn
// has to be earlier than the turn of that gate.
inline constexpr uint32_t kTurn = 1, kAhead = 3;
static_assert(kLeastIslandSlots > 2 * kAhead - kTurn && kLeastIslandSlots >= 2 * kAhead);

inline uint32_t ahead_of(const Builder &b) { return b.varying || b.plan.chunks > kAhead ? kAhead : b.plan.chunks; }

}  // namespace isthmus::plan
