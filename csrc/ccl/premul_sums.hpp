// The operations of NCCL's shape that multiply before they sum: made of a communicator, one a type, because an island has one factor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/dtype.hpp"
#include "ccl/first_failure.hpp"
#include "ccl/nccl_library.hpp"

namespace isthmus::ccl::nccl {

// Whoever calls is in the library's calls. An operation may be destroyed when the calls that were given it have returned. Those that are left go
// with the communicator.
class PremulSums {
 public:
  // `op`: the library's number of the operation that multiplies by 2^-halvings. A failed call is in `failure`.
  Result find(const NcclLibrary &library, Handle handle, DType dtype, int halvings, FirstFailure &failure, int *op);

 private:
  struct Multiplied {
    int op = -1, halvings = 0;
  };
  std::array<Multiplied, kDTypeCount> made_{};
};

}  // namespace isthmus::ccl::nccl
