// One rank of an island that a library of NCCL's shape serves.
#pragma once

#include <memory>

#include "ccl/island_ccl.hpp"
#include "ccl/nccl_library.hpp"

namespace isthmus::ccl::nccl {

// Library::join(), for arguments that are in order. `library` outlives the communicator.
std::unique_ptr<IslandCommunicator> join_island(const NcclLibrary &library, const IslandJoin &join,
                                                std::shared_ptr<device::Stream> stream);

}  // namespace isthmus::ccl::nccl
