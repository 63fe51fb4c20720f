// Huawei's Ascend devices, through the runtime library of CANN, which is opened at run time (libascendcl.so). Streams of
// theirs wait for nothing that the host does, as far as anybody has shown on hardware: there are no gates. Signals are
// functions that a stream calls on the host.
//
// The library copies from and to host memory by the host's own address, if it is registered; the address at which kernels
// find such memory is none that it copies with. So device_address() of registered memory is the host's address, and copy()
// tells the library which side is which by looking it up among what is registered.
#pragma once

#include "device/runtime.hpp"

namespace isthmus::device {

// The runtime of this process; lives as long as it does. Throws Error(Unsupported) with one sentence that says what is
// missing: the library, a function that it must have, a device.
Runtime &acl_runtime();

}  // namespace isthmus::device
