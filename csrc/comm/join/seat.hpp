// Step 4 of joining: this rank's place in the library of its island, and the Rank with its ring and its receive slots.
#pragma once

#include <memory>

#include "comm/join/wiring.hpp"
#include "comm/terms.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm::join {

struct Seat {
  std::shared_ptr<rank::Rank> rank;
  topology::Topology topology;
  Terms terms;
  Rollback leave;  // the rank leaves, unless the new communicator keeps the rank
};
// Collective: one vote. From then on the index and the mailbox of `offer` are the Rank's.
Seat take_seat(const Invitation &invitation, Offer &offer, const Agreement &agreement, Wiring wiring);

// Where a rank keeps, in its arena, the ring that devices of other ranks reach. The struct travels as it is.
struct RingPlace {
  uint64_t offset = 0, bytes = 0;  // 0: nowhere
  uint64_t room = 0;               // of the ring and all behind it, as devices of other ranks have it registered
  uint64_t slots =
      0;  // receive slots for each other rank that shares the memory, behind the ring (messages/slot_messages.hpp)
};

struct RingsSetup {
  std::shared_ptr<process::Context> context;
  std::vector<RingPlace> places;  // by rank; nowhere, of ranks that share no memory with this one
  std::vector<int> sharing;       // the ranks that share memory with this one, and itself
  uint64_t part;                  // of a message in a receive slot, in bytes
  const Device &device;
  Deadline deadline;
  bool guard;  // the setting GuardSlots
};
// Rings have fixed places where all ranks that share memory have a ring. The device of this rank uses the places where the device reaches all of
// them. Whether the device uses the places is this rank's affair. No other rank finds other bytes in a slot for it, nor the bytes at another
// time.
void fix_rings(rank::Rank &local, Terms &terms, const RingsSetup &setup);

}  // namespace isthmus::comm::join
