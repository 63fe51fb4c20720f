// The operations of NCCL's shape that multiply before they sum. A communicator keeps one for each type: programs multiply by one factor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "ccl/nccl_library.hpp"
#include "ccl/stream_word.hpp"

namespace isthmus::ccl::nccl {

// The caller holds NcclHandle::calls. An operation may be destroyed when the calls that were given the operation have returned. The operations
// that are left end with the communicator.
class PremulSums {
 public:
  // Sets `op` to the library's number of the operation. A call that fails is in `failure` too.
  Result find(const NcclLibrary &library, Handle handle, DType dtype, Reduction by, StreamFailure &failure, int *op);

 private:
  struct Multiplied {
    int op = -1;
    uint64_t factor = 0;
  };
  std::array<Multiplied, kDTypeCount> made_{};
};

}  // namespace isthmus::ccl::nccl
