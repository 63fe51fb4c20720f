// The real library behind this one: found and opened at the first call, once a process.
#pragma once

#include "abi.hpp"
#include "words.hpp"

namespace isthmus::interpose {

// Which of the two this file is built into.
struct Vendor {
  const char *name;     // "NCCL"
  const char *family;   // "nccl": how Isthmus calls such libraries
  const char *device;   // "cuda": and their devices
  const char *soname;   // "libnccl.so.2"
  const char *stem;     // "libnccl.so": how the names of its files begin
  const char *setting;  // "ISTHMUS_REAL_NCCL"
  const char *install;  // what to tell who has none
  const char
      *folders[4];  // where else it is installed: absolute, or from the folder that Python packages are in; ends with null
};
const Vendor &vendor() noexcept;

struct Real {
  void *handle;      // null: there is none
  Result code;       // what a call gets then
  bool disabled;     // ISTHMUS_DISABLE=1
  const char *path;  // of its file
  const char *text;  // why there is none
};
// Opens it if that has not been done. Any thread, no lock: two that come at once both open it, which gives one handle.
const Real &real() noexcept;

// "NCCL 2.29.3 in /path". Asks the library for its version.
void describe(Words &out, const Real &) noexcept;

void *look_up(
    const char *name) noexcept;  // a function of the real library; null: it has none of that name, or there is no library

int version_of(const Real &) noexcept;  // as ncclGetVersion gives it; 0: it does not

void keep(const char *reason) noexcept;  // for ncclGetLastError; the text stays for good
// For a call without a real function, or one that a communicator which spans vendors cannot make: keeps the reason for ncclGetLastError,
// says it once in the log, and returns the code.
Result refuse(const char *name, bool spans = false) noexcept;

}  // namespace isthmus::interpose
