// The runtimes of all vendors, by the names that ISTHMUS_DEVICE has for them.
#pragma once

#include <string>
#include <vector>

#include "device/runtime.hpp"

namespace isthmus::device {

// {"cuda", "hip", "acl"}. Wherever all are asked, they are asked in this order.
std::vector<std::string> vendors();

// The runtime of a vendor of vendors(). The first call opens the runtime, which lives as long as the process. Throws Error(Unsupported) with one
// sentence that says what is missing, Error(Argument) for another name.
Runtime &open_runtime(const std::string &vendor);

}  // namespace isthmus::device
