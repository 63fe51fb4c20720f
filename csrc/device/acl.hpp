// Huawei's Ascend devices, through the runtime library of CANN (libascendcl.so), which is opened at run time. As far as anybody has shown on
// hardware, the devices' streams wait for nothing that the host does. So there are no gates. Signals are functions that a stream calls
// on the host.
//
// The library copies from and to registered host memory by the host's own address. Kernels find such memory at another address, with which the
// library does not copy. So device_address() of registered memory is the host's address. copy() looks both sides up among the
// registered ranges, and tells the library which side is which.
#pragma once

#include "device/runtime.hpp"

namespace isthmus::device {

// The runtime of this process, which lives as long as the process. Throws Error(Unsupported) with one sentence that says what is
// missing: the library, a function that the library must have, a device.
Runtime &acl_runtime();

}  // namespace isthmus::device
