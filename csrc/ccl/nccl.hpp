// Libraries that have NCCL's interface: stream-ordered calls, communicators that can be aborted from another thread, ranks of one island
// that may be threads of one process. One row of a table each: NVIDIA's NCCL, AMD's RCCL. The calls go to the stream that a communicator
// was made with.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

struct NcclFamily {
  const char *family, *vendor;  // the second: of the runtime whose streams it takes
};
std::span<const NcclFamily> nccl_families() noexcept;

// Opens the library of `family` ("nccl"): the file `path`, or what the process has already, or what the loader finds where `path` is
// empty. Once a process and family; a later call gives the same library whatever it asks for. Throws Error(Unsupported) with one
// sentence that says what is missing and what to install.
std::shared_ptr<Library> open_nccl(const std::string &family, const std::string &path);

}  // namespace isthmus::ccl
