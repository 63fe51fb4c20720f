// From which size on a message between islands is better cut in pieces than sent whole: measured on a communicator.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// Collective. All_reduces of float32 of 1 KiB to the most that the leader exchange can be, each as the leader exchange and in pieces, in about `seconds`, with
// the memory that the ranks work on: {"link": "memory" or "tcp", "bytes": the median over the sweeps of best_leader_bytes(), "min", "max",
// "repetitions": sweeps, "ranks", "islands", "sizes": [bytes], "star_us": [median], "pieces_us": [median]}. Times are those of the slowest
// rank, so all ranks return the same. Throws Error(Unsupported) where no message crosses between islands.
std::string measure_leader_exchange_json(comm::Communicator &comm, double seconds);

// The size of `sizes` (ascending) up to which the leader exchange is to be taken, 0 where never: the one that costs least over all of them, each time
// counted in relation to the other form's, so that a single odd time does not decide. Of equals the smaller.
int64_t best_leader_bytes(std::span<const int64_t> sizes, std::span<const double> star, std::span<const double> pieces);

}  // namespace isthmus::observe
