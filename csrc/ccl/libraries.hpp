// The vendors' collective libraries that there are, by the name that ISTHMUS_CCL has for them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

// {"oneccl", "nccl", "rccl", "hccl"}: in this order wherever all of them are asked.
std::vector<std::string> families();

// Whose memory a family works on: a vendor of device/runtimes.hpp, or "host". Empty for an unknown one.
std::string vendor_of(const std::string &family);

// The family that serves ranks on the memory of `vendor` where nothing else was asked for; empty: none. Ranks on host memory have none
// unless one is asked for.
std::string family_for(const std::string &vendor);

// Whether ranks of one island that a library of this family serves may be threads of one process.
bool serves_threads(const std::string &family) noexcept;

// Opens the library: the file `path`, or what the loader finds where that is empty. Once a process and family; a later call gives the
// same library whatever it asks for. `interface`: of this host, by which the other ranks
// are reached, or empty: for libraries that would look for one themselves. Throws Error(Unsupported) with one sentence that says
// what is missing and what to install, Error(Argument) for an unknown family.
std::shared_ptr<Library> open_library(const std::string &family, const std::string &path, const std::string &interface);

}  // namespace isthmus::ccl
