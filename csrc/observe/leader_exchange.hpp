// From which size on a message between islands is better cut in pieces than sent whole: measured on a communicator.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// Collective: all ranks call it. Measures all_reduces of float32 of 1 KiB, 2 KiB, ... to the most that a leader exchange can be, on the
// memory that the ranks work on. Each size is measured as a leader exchange and in pieces, in about `seconds` altogether. A time is that of
// the slowest rank, so all ranks return the same:
//   {"link": "memory" or "tcp", "bytes": the median over the sweeps of best_leader_bytes(), "min", "max", "repetitions": sweeps, "ranks",
//    "islands", "sizes": [bytes], "star_us": [median of the leader exchange], "pieces_us": [median]}
// Throws Error(Unsupported) where no message crosses between islands.
std::string measure_leader_exchange_json(comm::Communicator &comm, double seconds);

// The size of `sizes` (ascending) up to which the leader exchange is to be taken; 0: never. The size is the one that costs least over all
// sizes. Each time counts in relation to the time of the other form, so that a single odd time does not decide. Of equals the smaller.
int64_t best_leader_bytes(std::span<const int64_t> sizes, std::span<const double> whole, std::span<const double> pieces);

}  // namespace isthmus::observe
