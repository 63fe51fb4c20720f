// Measures, on a communicator, the size from which on a message between islands is better cut in pieces than sent whole.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// Collective: all ranks call it. Measures all_reduces of float32 of 1 KiB, 2 KiB, ... to the most that a leader exchange can be, on the
// memory on which the ranks work. Each size is measured as a leader exchange and in pieces. All takes about `seconds`. A time is the time of
// the slowest rank, so all ranks return the same:
//   {"link": "memory" or "tcp", "bytes": the median over the sweeps of best_leader_bytes(), "min", "max", "repetitions": sweeps, "ranks",
//    "islands", "sizes": [bytes], "star_us": [median of the leader exchange], "pieces_us": [median]}
// Error(Unsupported): no message crosses between islands.
std::string measure_leader_exchange_json(comm::Communicator &comm, double seconds);

// The size of `sizes` (ascending) up to which messages are to take the leader exchange. 0: no message. With that size as the limit all sizes
// together cost least. Each time counts in relation to the time of the other form, so a single odd time does not decide. Of two limits that
// cost the same the smaller counts.
int64_t best_leader_bytes(std::span<const int64_t> sizes, std::span<const double> whole, std::span<const double> pieces);

}  // namespace isthmus::observe
