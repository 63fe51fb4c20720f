// What a call would do, as JSON. "text" has the same in a form to read.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// The plan as plan::explain_json() gives it, and besides:
//   "path"        "one hop" where cells serve the call; the plan then is what a larger call of that kind would have
//   "predicted"   {"seconds", "copies", "reductions", "links", "bridge", "device", "fill", "simulated"} (plan::Prediction), or null
//   "last"        {"seconds", "sequence", "bytes"} of the last call of that shape on this rank that the flight recorder has, or null
std::string explain_json(comm::Communicator &comm, const plan::Plan &plan, bool one_hop);

// A send to `peer`, or a receive from it (-1: from any rank): {"collective", "dtype", "rank", "world", "peer", "bytes", "flat", "path": "at
// once", "asked for" or "slot", "link", "parts", "part_bytes", "predicted": {"seconds", "out", "link", "in", "simulated"} or null,
// "last": {"seconds", "bytes"} or null, "text"}. Error(Argument): the peer is no rank.
std::string explain_message_json(comm::Communicator &comm, Collective c, int peer, DType dtype, uint64_t bytes);

}  // namespace isthmus::observe
