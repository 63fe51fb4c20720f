// Reports on a running process as JSON: the flight recorder of a communicator, the state of the context.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// {"communicator", "rank", "size", "failure", "waiting", "entries": [{"sequence", "collective", "dtype", "op", "bytes", "root" or "peer",
// "state", "submitted_us", "duration_us", "result"}]}: finished operations oldest first, then those in flight.
std::string dump_json(comm::Communicator &comm);
std::string context_json();
std::string devices_json();                            // the vendors' devices: found or not, and why
std::string libraries_json(const Settings &settings);  // those that can serve islands: found or not, and why
// The plan as plan::explain_json() gives it, with "path": "one hop" where cells serve the call and the plan is only its larger twin. And
// "predicted": {"seconds", "copies", "folds", "links", "bridge", "device", "fill", "simulated"} (plan::Prediction) or null, "last":
// {"seconds", "sequence", "bytes"} of the last call of that shape on this rank that the flight recorder has, or null.
std::string explain_json(comm::Communicator &comm, const plan::Plan &plan, bool one_hop);

}  // namespace isthmus::observe
