// Libraries that have NCCL's interface: NVIDIA's NCCL and AMD's RCCL, each a row of a table. Their calls are ordered by a stream, and go to the
// stream with which a communicator was made. Another thread can abort a communicator. The ranks of one island may be threads of one
// process.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "ccl/island_ccl.hpp"

namespace isthmus::ccl {

struct NcclFamily {
  const char *family, *vendor;  // vendor: of the runtime whose streams the library takes
};
std::span<const NcclFamily> nccl_families() noexcept;

// Opens the library of `family` ("nccl"): the file `path`. Where `path` is empty: the file that the process has already, or else the one that the
// loader finds. A process opens one library of a family; a later call gives the same one, whatever it asks for. Throws Error(Unsupported)
// with one sentence that says what is missing and what to install.
std::shared_ptr<Library> open_nccl(const std::string &family, const std::string &path);

}  // namespace isthmus::ccl
