// What this rank gives its device, and waits there for other ranks (p2p/quiet_time.hpp).
#pragma once

#include "engine/rank_core.hpp"

namespace isthmus::engine {

// Something of `op` is about to be given to the device that waits for another rank. Waits until no message is being settled for the library.
void enter_waits(RankCore &core, const Operation &op) noexcept;
// It waits no more. Once for each enter_waits().
inline void leave_waits(const RankCore &core) noexcept {
  if (core.device.quiet) core.device.quiet->leave();
}

}  // namespace isthmus::engine
