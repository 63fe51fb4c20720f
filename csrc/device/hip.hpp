// AMD's devices, through the HIP runtime library, version 5, 6 or 7. The library is opened at run time (libamdhip64.so.7, .6, .5): the file that
// the process has already, or else the newest that the loader finds.
#pragma once

#include "device/runtime.hpp"

namespace isthmus::device {

// The runtime of this process, which lives as long as the process. Throws Error(Unsupported) with one sentence that says what is missing:
// the library, a version that is new enough, a device.
Runtime &hip_runtime();

}  // namespace isthmus::device
