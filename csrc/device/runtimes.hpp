// The vendors' runtimes that there are, by the name that ISTHMUS_DEVICE has for them.
#pragma once

#include <string>
#include <vector>

#include "device/runtime.hpp"

namespace isthmus::device {

// {"cuda", "hip", "acl"}: in this order wherever all of them are asked.
std::vector<std::string> vendors();

// The runtime of a vendor of vendors(), opened at the first call; it lives as long as the process. Throws Error(Unsupported) with one
// sentence that says what is missing, Error(Argument) for another name.
Runtime &open_runtime(const std::string &vendor);

}  // namespace isthmus::device
