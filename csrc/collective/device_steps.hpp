// Questions about the steps of a device list: whether a step has something to do, and which steps stand now, for people.
#pragma once

#include <cstdint>
#include <string>

#include "collective/device_signals.hpp"
#include "collective/engine_names.hpp"
#include "collective/host_doors.hpp"
#include "plan/cursor.hpp"

namespace isthmus::collective {

// Whether a copy is of the user's memory to where the memory lies already: the root's of a broadcast in place, say.
bool to_itself(const Operation &op, const plan::Step &step, uint32_t chunk);
// Whether a step has something to do in that chunk.
bool works(const Operation &op, const plan::Step &step, uint32_t chunk);
// Whether a group of calls begins at the step. A call that has nobody beside it needs no group. A message does: the other rank may have several.
bool begins_group(const Operation &op, const plan::Cursor &at);
// The calls of the library and the copies of `op` that the device may not have come past: "reduce_scatter of chunk 3 of 20 or a copy of chunk 3
// of 20". They stand from the device's last signal on to its next, or to a door that is closed. Empty: none.
std::string standing_steps(const Operation &op, const HostDoors &doors, const DeviceSignals &signals);

}  // namespace isthmus::collective
