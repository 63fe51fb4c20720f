// Which table of kernels is in use.
#pragma once

#include "reduce/kernels.hpp"

namespace isthmus::reduce {

const Table &active() noexcept;

}  // namespace isthmus::reduce
