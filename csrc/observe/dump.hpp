// Reports on a running process as JSON: the flight recorder of a communicator, the state of the context.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// {"communicator", "rank", "size", "host", "pid", "now_us", "unix_us": the time of day at now_us, "rehearsal": its fleet, in one, "failure", "waiting", "entries": [{"sequence",
// "collective", "dtype", "op", "bytes", "root" or "peer", "state", "submitted_us", "duration_us", "result"}]}. The finished operations come first, the
// oldest before the others, then the operations in flight. With ISTHMUS_TRACE also {"steps": [[sequence, what, stage, chunk, peer, bytes, begun_us,
// duration_us]], "steps_lost": of the process}. `indent`: below 0, one line.
std::string dump_json(comm::Communicator &comm, int indent = 1);
// Adds that as a line to the file that ISTHMUS_TRACE names, if it names one. The first line of a process replaces what the file had. A fault is logged.
void write_trace(comm::Communicator &comm) noexcept;
std::string context_json();
std::string devices_json();                            // each vendor's devices: found or not, and why
std::string ucx_json();                                // found or not, and why; over what it would go
std::string libraries_json(const Settings &settings);  // each that can serve islands: found or not, and why

}  // namespace isthmus::observe
