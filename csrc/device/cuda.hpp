// NVIDIA's devices, through the driver library alone: programs bring the runtime library linked in, and the driver is what all of them
// share, with the same handles. The library is opened at run time (libcuda.so.1).
#pragma once

#include "device/runtime.hpp"

namespace isthmus::device {

// The runtime of this process; lives as long as it does. Throws Error(Unsupported) with one sentence that says what is missing: the
// library, a version that is new enough, a device.
Runtime &cuda_runtime();

}  // namespace isthmus::device
