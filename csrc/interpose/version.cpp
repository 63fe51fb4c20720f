// What NCCL and RCCL say when they are asked for their version.
#include <dlfcn.h>

#include "abi.hpp"
#include "real.hpp"
#include "words.hpp"

namespace isthmus::interpose {

void write_version_of(Words &out, void *library) noexcept {
  using GetVersion = Result(int *);
  auto *get = reinterpret_cast<GetVersion *>(dlsym(library, "ncclGetVersion"));
  int code = 0;
  out << " ";
  write_version(out, get && get(&code) == kSuccess ? code : 0);
}

}  // namespace isthmus::interpose
