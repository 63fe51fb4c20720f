// What one rank knows of a communicator before its ranks have spoken.
//
// A rank joins in four steps, each a function of what the steps before it gave:
//   1. offer.hpp      what this rank has
//   2. agreement.hpp  the offers of all ranks, compared
//   3. wiring.hpp     connections, and the streams of this rank's device
//   4. seat.hpp       the library, the Rank, its ring and its receive slots
// Steps 2, 3 and 4 each have one exchange among all ranks:
//
//   rank 0   offer ---> agreement ---> wiring ---> seat ---> the communicator
//                            |            |          |
//                       blobs cross  votes cross  votes cross
//                            |            |          |
//   rank 1   offer ---> agreement ---> wiring ---> seat ---> the communicator
//
// Where a step fails on one rank, the step fails on all ranks, with the text of that rank. Each rank then gives back what its earlier steps
// have taken (Rollback).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/settings.hpp"
#include "bootstrap/rendezvous.hpp"
#include "process/context.hpp"
#include "topology/topology.hpp"

namespace isthmus::rank {
class Rank;
}

namespace isthmus::comm::join {

// The communicator from which split or shrink makes the new communicator.
struct Parent {
  bootstrap::Bytes16 key{};  // of its job; the new communicator has the same key
  topology::RankInfo info;   // of this rank, as the parent knows it
  double timeout = 0;        // that it has now; the new communicator has the same
  // This rank in the parent, where the parent ends with the call and leaves what it has to the new communicator.
  rank::Rank *ends = nullptr;
};

struct Invitation {
  std::string name;     // for people
  std::string members;  // whom this rank takes for the members; empty: not said. Where ranks say unlike things, init fails
  int rank = 0, world = 1;
  const Settings &settings;
  std::shared_ptr<process::Context> context;
  std::optional<Parent> parent;
  bootstrap::Exchange &exchange;  // among the ranks of the new communicator
  Deadline deadline;
  bool grown = false;  // from a communicator of which this rank has not been a member
  int slot = -1,
      slots = -1;      // this rank's number for people, and how many numbers there are; -1: as many as ranks, without holes
  bool keeps = false;  // it is asked that ranks keep their numbers
  int number() const noexcept { return slot < 0 ? rank : slot; }
};

}  // namespace isthmus::comm::join
