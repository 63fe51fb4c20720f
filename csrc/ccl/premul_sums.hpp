// The operations of NCCL's shape that multiply before they sum. A communicator makes one for each type, because an island has one factor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "ccl/first_failure.hpp"
#include "ccl/nccl_library.hpp"

namespace isthmus::ccl::nccl {

// The caller holds NcclHandle::calls. An operation may be destroyed when the calls that were given the operation have returned. The operations
// that are left end with the communicator.
class PremulSums {
 public:
  // Sets `op` to the library's number of the operation that multiplies by 2^-halvings. A call that fails is in `failure` too.
  Result find(const NcclLibrary &library, Handle handle, DType dtype, int halvings, FirstFailure &failure, int *op);

 private:
  struct Multiplied {
    int op = -1, halvings = 0;
  };
  std::array<Multiplied, kDTypeCount> made_{};
};

}  // namespace isthmus::ccl::nccl
