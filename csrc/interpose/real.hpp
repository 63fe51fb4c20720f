// The real library behind this one: found and opened at the first call, once a process.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

enum Result : int;  // the vendor's own; abi.hpp, abi_hccl.hpp

// Which of the doors this file is built into.
struct Vendor {
  const char *name;     // "NCCL"
  const char *family;   // "nccl": how Isthmus calls such libraries
  const char *device;   // "cuda": and their devices
  const char *soname;   // "libnccl.so.2"
  const char *stem;     // "libnccl.so": how the names of its files begin
  const char *setting;  // "ISTHMUS_REAL_NCCL"
  const char *install;  // what to tell who has none
  const char *mark;     // "ncclGetVersion": the function by which the library is known
  const char *bridge;   // "isthmus_bridge_nccl": the function of the bridge that is for it
  uint32_t calls;       // the digest of what that gives
  const char *part;     // "libhcomm.so": where else its functions may be, if the process has that loaded; null: nowhere
  // What a call gets: the library lacks the function, there is no library, it is being opened.
  Result missing, absent, early;
  // Where else it is installed: absolute, or from the folder that Python packages are in, or from one that a variable names ("$HOME/x").
  // Ends with null.
  const char *folders[10];
};
const Vendor &vendor() noexcept;

struct Real {
  void *handle;      // null: there is none
  bool early;        // not yet
  bool disabled;     // ISTHMUS_DISABLE=1
  const char *path;  // of its file
  const char *text;  // why there is none
};
// Opens it if that has not been done. Any thread, no lock: two that come at once both open it, which gives one handle.
const Real &real() noexcept;

Result code_of(const Real &) noexcept;  // what a call gets that has no real function

// "NCCL 2.29.3 in /path". Asks the library for its version.
void describe(TextBuffer &out, const Real &) noexcept;
// " 2.29.3"; nothing where the vendor's library has none to ask for.
void write_version_of(TextBuffer &out, void *library) noexcept;

void *look_up(
    const char *name) noexcept;  // a function of the real library; null: it has none of that name, or there is no library

int version_of(const Real &) noexcept;  // as ncclGetVersion gives it; 0: it has none, or does not

void keep(const char *reason) noexcept;  // for ncclGetLastError; the text stays for good
// For a call without a real function, or one that a communicator which spans vendors cannot make: keeps the reason for the vendor's way to
// ask for it, if it has one, and returns the code.
Result refuse(const char *name, bool spans = false) noexcept;
// That reason; the first time for a name it is said in the log.
const char *reason_for(const char *name, const Real &, bool spans = false) noexcept;

}  // namespace isthmus::interpose
