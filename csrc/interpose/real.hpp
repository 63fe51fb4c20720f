// The real library behind this front door. The first call finds and opens the real library, once in a process.
#pragma once

#include "text_buffer.hpp"

namespace isthmus::interpose {

enum Result : int;  // the vendor's own; abi.hpp, abi_hccl.hpp

// The vendor whose front door this is.
struct Vendor {
  const char *name;     // "NCCL"
  const char *family;   // "nccl": Isthmus' name for such libraries
  const char *device;   // "cuda": Isthmus' name for their devices
  const char *soname;   // "libnccl.so.2"
  const char *stem;     // "libnccl.so": how the names of its files begin
  const char *setting;  // "ISTHMUS_REAL_NCCL"
  const char *install;  // the advice to a user who lacks the library
  const char *mark;     // "ncclGetVersion": the function by which the library is known
  const char *bridge;   // "isthmus_bridge_nccl": the function of the bridge for this door
  uint32_t calls;       // the digest of the list of calls that the bridge gives
  const char *part;  // "libhcomm.so": a further library with the functions, if the process has loaded that one; null: none
  // What a call returns where the library lacks the function; where there is no library; where the library is being opened.
  Result missing, absent, early;
  // Folders where the library may be installed, the last one null. A folder is absolute, or begins at the folder of Python's
  // packages, or begins with a variable ("$HOME/x").
  const char *folders[10];
};
const Vendor &vendor() noexcept;

struct Real {
  void *handle;      // null: there is no real library
  bool early;        // the library is being opened just now
  bool disabled;     // ISTHMUS_DISABLE=1
  const char *path;  // of the library's file
  const char *text;  // why there is no real library
};
// Opens the real library, unless a call has done so before. Any thread, no lock: two threads that come at once both open the
// library, and get one handle.
const Real &real() noexcept;

Result code_of(const Real &) noexcept;  // what a call without a real function returns

// Writes "NCCL 2.29.3 in /path". Asks the library for its version.
void describe(TextBuffer &out, const Real &) noexcept;
// Writes " 2.29.3", or nothing where the vendor's library does not tell its version.
void write_version_of(TextBuffer &out, void *library) noexcept;

// A function of the real library. Null: the library has none of that name, or there is no library.
void *look_up(const char *name) noexcept;

int version_of(const Real &) noexcept;  // as ncclGetVersion gives it; 0: the library does not say

void keep(const char *reason) noexcept;  // as the text for ncclGetLastError; the text must stay for good
// Refuses a call: there is no real function, or (`spans`) the communicator spans vendors and cannot make this call. Keeps
// the reason, where the vendor has a way to ask for a reason, and returns the code.
Result refuse(const char *name, bool spans = false) noexcept;
// Refuses an operation of a communicator that spans vendors. A group that is open on this thread fails with it.
Result refuse_operation(const char *name) noexcept;
// The reason for refuse(). The first time for a name, the reason is also a line of the log.
const char *reason_for(const char *name, const Real &, bool spans = false) noexcept;

}  // namespace isthmus::interpose
