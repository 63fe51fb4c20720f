// Part of step 4 of joining: this rank's place in the communicator of its island's library.
#pragma once

#include <string>

#include "comm/join/wiring.hpp"
#include "comm/terms.hpp"

namespace isthmus::comm::join {

// For a rank whose island is served. Fills wiring.served. Where this rank fails, the ranks of its island are told at once: they may wait for
// this rank inside the library.
void join_library(const Invitation &invitation, const Offer &offer, const Agreement &agreement, const Terms &terms,
                  Wiring &wiring, Attempts &attempt);
// "served by nccl ...", for the log; empty where no library serves this rank.
std::string served_by(const Offer &offer, const Agreement &agreement);

}  // namespace isthmus::comm::join
