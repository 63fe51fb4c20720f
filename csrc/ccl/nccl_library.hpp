// An opened library of NCCL's shape. nccl.cpp opens the library, and nccl_communicator.cpp calls it.
#pragma once

#include <string>

#include "base/dtype.hpp"
#include "base/error.hpp"
#include "ccl/island_ccl.hpp"
#include "ccl/nccl.hpp"
#include "ccl/nccl_abi.hpp"

namespace isthmus::ccl::nccl {

using namespace nccl_abi;

// What distinguishes one library of this shape from another.
struct NcclRow : NcclFamily {
  const char *file, *prefix;  // the SONAME; the prefix of every function
  const char *install;        // what a user without the library is told
  int least, float8;          // the oldest version that serves; the first that sums float8 (0: none)
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

// Whether the library reduces numbers of that type that way.
bool reduces_there(const NcclLibrary &o, DType dtype, Reduction by) noexcept;

// What a call's result means. `handle`: of the communicator that was called, if there is one.
Status outcome(const NcclLibrary &o, const char *call, Result r, Handle handle = nullptr);

}  // namespace isthmus::ccl::nccl
