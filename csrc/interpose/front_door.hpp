// What a front door and the bridge behind the door know of each other. Door and bridge are built together, and lie in one
// folder.
#pragma once

#include <cstdint>

namespace isthmus::interpose {

// Handles of communicators that span vendors lie in an address range of their own. The range can be read once there is such
// a handle, and is never written. A vendor's library may take such a handle for a communicator of its own, and read there.
// The library does not find the number with which its own communicators begin.
constexpr uintptr_t kHandleBytes = uintptr_t{32} << 20;

// What the front door and the bridge keep of one thread.
struct ThreadState {
  int depth;      // of groups that are open
  void *pending;  // what the bridge has to do when the outermost group ends; null: nothing
  // Calls of the bridge or of a routed function on the stack. The real library's own calls are not intercepted meanwhile.
  int inside;
  // How many communicators of the real library's the open group has operations on, and the first kMostJoined of them, each
  // once. The memory of a thread that a library brings along is scarce, so only the first few lie here.
  static constexpr int kMostJoined = 64, kFew = 3;
  int joined;
  void **more;  // those behind the first few, from malloc(); null: there are none
  void *few[kFew];
  void *comm(int i) const noexcept { return i < kFew ? few[i] : more[i - kFew]; }
};

// What a front door tells the bridge about the door. A front door is the library with a vendor's SONAME that a program calls.
struct FrontDoor {
  uint32_t digest;                           // of the list of calls that the bridge must have (routed_calls.hpp)
  const char *family;                        // "nccl": Isthmus' name for such libraries
  const char *device;                        // "cuda": Isthmus' name for the devices of such libraries
  const char *name;                          // "NCCL"
  const char *path;                          // of the real library
  int version;                               // of the real library, as the library says; 0: unknown
  void *(*look_up)(const char *name);        // a function of the real library; null: the library has none of that name
  ThreadState *(*thread)();                  // of the caller
  void (*keep)(const char *reason);          // for ncclGetLastError; the text must stay for good
  void (*say)(int level, const char *text);  // a line of the log; 2: info, 3: warning
};

enum Result : int;  // the vendor's own
// What the bridge gives a front door in turn. calls_nccl.hpp and calls_hccl.hpp add the calls.
struct Bridged {
  uintptr_t handles;  // where the range of handles begins
  // The door has refused an operation of a communicator that spans vendors: `code`, which it gives back. The group that is open
  // on this thread fails with the operation. `why` must stay for good.
  Result (*fail_group)(Result code, const char *why);
};
// The function of the bridge for a family of front doors. Null: the bridge was built with another front door.
using OpenBridge = const Bridged *(const FrontDoor *);

}  // namespace isthmus::interpose
