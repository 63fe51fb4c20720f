// A new epoch of a communicator, in its place. See isthmus_comm_reconfigure().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace isthmus::comm {

struct ReconfigureRequest {
  std::vector<int>
      excluded;  // ranks, and not slots, that live, perhaps, and are to be out; those that are gone are out in any case. Lists may be unlike
  std::string ticket;  // by which newcomers come; empty: none come
  int newcomers = 0;
  std::vector<int> slots;  // theirs; empty: see GrownRanks
  Numbers numbers = Numbers::Dense;
};

struct Reconfigured {
  std::shared_ptr<Communicator> epoch;
  Status newcomers;  // not OK: they could not come in. The epoch has the ranks that were left
};

// Collective over the ranks that stay. `whole` is still to be destroyed, and has left to the new epoch what that goes on with. Where it throws,
// there is no new epoch: `whole` goes on if it did before, unless ranks were to be out or were lost.
Reconfigured reconfigure(Communicator &whole, const ReconfigureRequest &request);

}  // namespace isthmus::comm
