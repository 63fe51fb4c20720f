// Step 4 of joining: this rank's place in the library of its island, and the Rank with its ring and its receive slots.
#pragma once

#include <memory>

#include "comm/join/wiring.hpp"
#include "comm/terms.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm::join {

struct Seat {
  std::shared_ptr<rank::Rank> rank;
  topology::Topology islands;
  Terms terms;
  Rollback leave;  // the rank's end
};
// Collective: one vote. The index and the mailbox of `offer` are the rank's from then on.
Seat take_seat(const Invitation &invitation, Offer &offer, const Agreement &agreement, Wiring wiring);

// Where a rank keeps the ring that devices of other ranks reach, in its arena. Sent as it is.
struct RingPlace {
  uint64_t offset = 0, bytes = 0;  // 0: nowhere
  uint64_t slots = 0;              // receive slots for each other rank, behind it (messages/slot_messages.hpp)
};

struct RingsSetup {
  std::shared_ptr<process::Context> context;
  std::vector<RingPlace> places;  // by rank
  uint64_t part;                  // of a message in a receive slot, in bytes
  const Device &device;
  Deadline deadline;
  bool guard;  // the setting GuardSlots
};
// Rings have their fixed places where all ranks that share memory have one. The device of this rank uses the places where the
// device reaches them all. Whether the device does is this rank's affair: no other rank finds other bytes in a slot, or at another time.
void fix_rings(rank::Rank &local, Terms &terms, const RingsSetup &setup);

}  // namespace isthmus::comm::join
