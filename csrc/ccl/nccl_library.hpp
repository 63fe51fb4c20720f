// A library of NCCL's shape that was opened: what nccl.cpp, which opens it, and nccl_communicator.cpp share.
#pragma once

#include <string>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "ccl/island_ccl.hpp"
#include "ccl/nccl.hpp"
#include "ccl/nccl_abi.hpp"

namespace isthmus::ccl::nccl {

using namespace nccl_abi;

// What tells one library of this shape from another.
struct NcclRow : NcclFamily {
  const char *file, *prefix;  // SONAME; of every function
  const char *install;        // what to tell who has none
  int least, float8;          // the oldest that serves; since when it sums float8 (0: never)
};
struct NcclLibrary {
  const NcclRow *row = nullptr;
  Functions f;
  int version = 0;
  std::string path;
};

// The library's numbers of a type and an operation. -1: the library has none.
int type_number(DType t) noexcept;
int op_number(RedOp op) noexcept;

// Whether the library reduces such numbers that way.
bool reduces_there(const NcclLibrary &o, DType dtype, Reduction by) noexcept;

// What a call's result means. `handle`: of the communicator that was called, if there is one.
Status outcome(const NcclLibrary &o, const char *call, Result r, Handle handle = nullptr);

}  // namespace isthmus::ccl::nccl
