// The version of NCCL or RCCL, as the library says.
#include <dlfcn.h>

#include "abi.hpp"
#include "real.hpp"
#include "text_buffer.hpp"

namespace isthmus::interpose {

namespace {

int version_in(void *library) {
  using GetVersion = Result(int *);
  auto *get = reinterpret_cast<GetVersion *>(dlsym(library, "ncclGetVersion"));
  int code = 0;
  return get && get(&code) == kSuccess ? code : 0;
}

}  // namespace

int version_of(const Real &r) noexcept { return version_in(r.handle); }

void write_version_of(TextBuffer &out, void *library) noexcept {
  out << " ";
  write_version(out, version_in(library));
}

}  // namespace isthmus::interpose
