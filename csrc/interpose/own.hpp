// The functions of the door's own: those that the table does not forward.
#pragma once

#include "abi.hpp"
#include "bridge.hpp"
#include "calls_nccl.hpp"

namespace isthmus::interpose {

// The bridge of a caller that has a communicator of ours.
inline const Calls *the_bridge() noexcept { return static_cast<const Calls *>(the_calls.load(std::memory_order_acquire)); }
// A handle that a program got in a group, before it was known whose communicator it is, may stand for one of the vendor's: that, or null.
inline Comm behind(Comm comm) noexcept { return the_bridge()->behind(comm); }
// The bridge, where it has to know that this one ends: it is one of ours, or the vendor's that one of ours stands for. Else null.
inline const Calls *ending(Comm comm) noexcept {
  const Calls *b = the_bridge();
  return b && (ours(comm) || b->named(comm)) ? b : nullptr;
}
// Of one that may get one; null as open_bridge() says, and where the real library itself calls.
inline const Calls *bridge(const Inside &inside) noexcept {
  return inside.first() ? static_cast<const Calls *>(open_bridge()) : nullptr;
}

const char *own_ncclGetLastError(Comm comm) noexcept;
const char *own_ncclGetErrorString(Result code) noexcept;
Result own_ncclGroupStart() noexcept;
Result own_ncclGroupEnd() noexcept;
Result own_ncclGroupSimulateEnd(void *info) noexcept;

}  // namespace isthmus::interpose
