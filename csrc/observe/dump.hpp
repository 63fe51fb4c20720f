// Reports on a running process as JSON: the flight recorder of a communicator, the state of the context.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// {"communicator", "rank", "size", "failure", "waiting", "entries": [{"sequence", "collective", "dtype", "op", "bytes", "root" or "peer",
// "state", "submitted_us", "duration_us", "result"}]}. The finished operations come first, the oldest before the others, then the
// operations in flight.
std::string dump_json(comm::Communicator &comm);
std::string context_json();
std::string devices_json();                            // each vendor's devices: found or not, and why
std::string ucx_json();                                // found or not, and why; over what it would go
std::string libraries_json(const Settings &settings);  // each that can serve islands: found or not, and why

}  // namespace isthmus::observe
