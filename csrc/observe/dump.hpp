// Reports on a running process as JSON: the flight recorder of a communicator, the state of the context.
#pragma once

#include <string>

#include "comm/communicator.hpp"

namespace isthmus::observe {

// {"communicator", "rank", "size", "members": the slots that have a rank, "epoch": equal on all ranks, of no other communicator of theirs, "boot": of
// the machine, "host", "pid", "now_us", "unix_us": the time of day at now_us, "rehearsal": its fleet, in one, "failure", "waiting", "entries":
// [{"sequence", "collective", "dtype", "op", "bytes", "root", or "peer" and "tag", "state", "submitted_us", "duration_us", "result"}]}. The finished
// operations come first, the oldest before the others, then the operations in flight. With ISTHMUS_TRACE also {"steps": [[sequence, what, stage, chunk,
// peer, bytes, begun_us, duration_us]], "streams": as in context_json(), "steps_lost", "entries_lost": of the process}. `indent`: below 0, one line.
std::string dump_json(comm::Communicator &comm, int indent = 1);
// Of each communicator that is made. The first one's rank is in the name of the process's file, where ISTHMUS_TRACE names one.
void name_trace(const comm::Communicator &comm);
// Adds what dump_json() gives to that file, as a line. The first line of a process replaces what the file had, where its name is this process's alone.
// Once for a communicator. A fault is logged.
void write_trace(comm::Communicator &comm) noexcept;
std::string context_json();
std::string devices_json();                            // each vendor's devices: found or not, and why
std::string ucx_json();                                // found or not, and why; over what it would go
std::string libraries_json(const Settings &settings);  // each that can serve islands: found or not, and why

}  // namespace isthmus::observe
