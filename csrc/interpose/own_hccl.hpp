// The functions that the front door of HCCL has itself: those that the table neither forwards nor routes.
#pragma once

#include "abi_hccl.hpp"
#include "bridge.hpp"
#include "calls_hccl.hpp"

namespace isthmus::interpose {

using hccl::Calls;

// The bridge, for a caller that has a communicator of ours. Such a caller has made the bridge known before.
inline const Calls *the_bridge() noexcept { return static_cast<const Calls *>(the_calls.load(std::memory_order_acquire)); }
// No handle of ours is an alias of HCCL's: in a group HCCL gives a program its handle when the group ends.
inline hccl::Comm behind(hccl::Comm) noexcept { return nullptr; }
// The bridge, for a call that may make a communicator. Null: open_bridge() gives none, or the real library itself calls.
inline const Calls *bridge(const Inside &inside) noexcept {
  return inside.first() ? static_cast<const Calls *>(open_bridge()) : nullptr;
}

const char *own_HcclGetErrorString(Result code) noexcept;
Result own_HcclGroupStart() noexcept;
Result own_HcclGroupEnd() noexcept;

}  // namespace isthmus::interpose
