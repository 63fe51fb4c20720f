// The collective libraries of all vendors, by the names that ISTHMUS_CCL has for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

// {"oneccl", "nccl", "rccl", "hccl"}. Wherever all are asked, they are asked in this order.
std::vector<std::string> families();

// The vendor on whose memory a family works: one of device/runtimes.hpp, or "host". Empty: the family is unknown.
std::string vendor_of(const std::string &family);

// The family that serves ranks on the memory of `vendor` where the user asked for nothing else. Empty: no family does. Ranks on host memory have none
// unless the user asks for one.
std::string family_for(const std::string &vendor);

// Whether the ranks of an island may be threads of one process, where a library of this family serves the island.
bool serves_threads(const std::string &family) noexcept;

// Opens the library: the file `path`, or what the loader finds where `path` is empty. A process opens one library of a family; a later call gives the
// same one, whatever it asks for. `interface` is the interface of this host by which the other ranks are reached, or empty. It is for
// libraries that would look for one themselves. Throws Error(Unsupported) with one sentence that says what is missing and what to install,
// Error(Argument) for an unknown family.
std::shared_ptr<Library> open_library(const std::string &family, const std::string &path, const std::string &interface);

}  // namespace isthmus::ccl
