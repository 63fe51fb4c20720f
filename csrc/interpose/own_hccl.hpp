// HCCL's functions of this folder's own: those that the table routes here instead of forwarding them.
#pragma once

#include "abi_hccl.hpp"
#include "bridge.hpp"
#include "calls_hccl.hpp"

namespace isthmus::interpose {

using hccl::Calls;

// The bridge of a caller that has a communicator of ours.
inline const Calls *the_bridge() noexcept { return static_cast<const Calls *>(the_calls.load(std::memory_order_acquire)); }
// None of ours stands for one of HCCL's: inits in a group are HCCL's own.
inline hccl::Comm behind(hccl::Comm) noexcept { return nullptr; }
// Of one that may get one; null as open_bridge() says, and where the real library itself calls.
inline const Calls *bridge(const Inside &inside) noexcept {
  return inside.first() ? static_cast<const Calls *>(open_bridge()) : nullptr;
}

const char *own_HcclGetErrorString(Result code) noexcept;
Result own_HcclGroupStart() noexcept;
Result own_HcclGroupEnd() noexcept;

}  // namespace isthmus::interpose
