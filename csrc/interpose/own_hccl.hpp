// HCCL's functions of this folder's own: those that the table routes here instead of forwarding them.
#pragma once

#include "abi_hccl.hpp"

namespace isthmus::interpose {

const char *own_HcclGetErrorString(Result code) noexcept;

}  // namespace isthmus::interpose
