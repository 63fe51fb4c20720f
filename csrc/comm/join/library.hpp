// Part of step 4 of joining: this rank's place in the communicator of its island's library.
#pragma once

#include <string>

#include "comm/join/wiring.hpp"
#include "comm/terms.hpp"

namespace isthmus::comm::join {

// For a rank whose island a library serves. Fills wiring.served. Where this rank fails, it tells the ranks of its island at once, because these
// ranks may wait for it inside the library:
//
//   rank 0   join of the library: waits ........ the join ends: a rank of the island cannot join
//                                               ^
//   rank 1   its part of the step fails --------/
void join_library(const Invitation &invitation, const Offer &offer, const Agreement &agreement, const Terms &terms,
                  Wiring &wiring, Attempts &attempt);
// "served by nccl ...", for the log; empty where no library serves this rank.
std::string served_by(const Offer &offer, const Agreement &agreement);

}  // namespace isthmus::comm::join
