// NVIDIA's devices, through the driver library alone (libcuda.so.1), which is opened at run time. Programs bring the runtime library linked in.
// The driver is what all of them share, with the same handles.
#pragma once

#include "device/runtime.hpp"

namespace isthmus::device {

// The runtime of this process, which lives as long as the process. Throws Error(Unsupported) with one sentence that says what is missing:
// the library, a version that is new enough, a device.
Runtime &cuda_runtime();

}  // namespace isthmus::device
