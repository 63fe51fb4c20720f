// The functions of the door's own: those that the table does not forward.
#pragma once

#include "abi.hpp"

namespace isthmus::interpose {

const char *own_ncclGetLastError(Comm comm) noexcept;
const char *own_ncclGetErrorString(Result code) noexcept;
Result own_ncclGroupStart() noexcept;
Result own_ncclGroupEnd() noexcept;
Result own_ncclGroupSimulateEnd(void *info) noexcept;

}  // namespace isthmus::interpose
