// The functions that a front door of NCCL or RCCL has itself: those that the table neither forwards nor routes.
#pragma once

#include "abi.hpp"
#include "bridge.hpp"
#include "calls_nccl.hpp"

namespace isthmus::interpose {

// The bridge, for a caller that has a communicator of ours. Such a caller has made the bridge known before.
inline const Calls *the_bridge() noexcept { return static_cast<const Calls *>(the_calls.load(std::memory_order_acquire)); }
// The vendor's handle behind a handle of ours, or null. A program may have got its handle in a group, before anybody knew
// whose the communicator is. Such a handle of ours may be an alias of the vendor's handle.
inline Comm behind(Comm comm) noexcept { return the_bridge()->behind(comm); }
// The bridge, for a call that may make a communicator. Null: open_bridge() gives none, or the real library itself calls.
inline const Calls *bridge(const Inside &inside) noexcept {
  return inside.first() ? static_cast<const Calls *>(open_bridge()) : nullptr;
}

// Keeps a communicator of the real library's that the open group has an operation on.
void join_group(ThreadState &t, Comm comm) noexcept;
inline void operates_on(Comm comm) noexcept {
  if (ThreadState &t = thread(); t.depth > 0 && t.inside == 0) join_group(t, comm);
}

const char *own_ncclGetLastError(Comm comm) noexcept;
const char *own_ncclGetErrorString(Result code) noexcept;
Result own_ncclGroupStart() noexcept;
Result own_ncclGroupEnd() noexcept;
Result own_ncclGroupSimulateEnd(void *info) noexcept;

}  // namespace isthmus::interpose
