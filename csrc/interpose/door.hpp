// What a front door and the bridge behind it know of each other. They are built together and lie in one folder.
#pragma once

#include <cstdint>

#include "routed_calls.hpp"

namespace isthmus::interpose {

// Handles of communicators that span vendors lie in a range of addresses of their own, which can be read once there is one, and never
// written: who takes one for a communicator of the vendor's does not find the number that those begin with.
constexpr uintptr_t kHandleBytes = uintptr_t{32} << 20;

// Of one thread.
struct Thread {
  int depth;      // of groups that are open
  void *pending;  // what the bridge has to do when the outermost one ends; null: nothing
  int inside;     // calls of the bridge or of a routed function: what the real library calls meanwhile is its own affair
};

struct Door {
  uint32_t digest;     // kCallsDigest
  const char *family;  // "nccl": how Isthmus calls such libraries
  const char *device;  // "cuda": how it calls their devices
  const char *name;    // "NCCL"
  const char *path;    // of the real library
  int version;
  void *(*look_up)(const char *name);        // a function of the real library, or null
  Thread *(*thread)();                       // of the caller
  void (*keep)(const char *reason);          // for ncclGetLastError; the text must stay for good
  void (*say)(int level, const char *text);  // a line of the log; 2: info, 3: warning
};

// What the bridge gives a door in turn.
struct Calls : RoutedCalls {
  uintptr_t handles;                // where the range begins
  Result (*group_end)();            // of the outermost group, where `pending` is not null
  void (*group_forget)();           // likewise, where nothing of it is to be done
  Comm (*behind)(Comm);             // the vendor's handle that one of ours stands for; null: none
  const char *(*last_error)(Comm);  // why a communicator of ours failed; null: it did not
};
// The one function that the bridge exports. Null: it was built with another door.
using OpenBridge = const Calls *(const Door *);
constexpr const char *kOpenBridge = "isthmus_bridge_nccl";

}  // namespace isthmus::interpose
