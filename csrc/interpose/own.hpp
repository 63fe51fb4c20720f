// The functions of this folder's own: those that the table routes here instead of forwarding them.
#pragma once

#include "abi.hpp"

namespace isthmus::interpose {

const char *routed_ncclGetLastError(Comm comm) noexcept;
const char *routed_ncclGetErrorString(Result code) noexcept;

}  // namespace isthmus::interpose
