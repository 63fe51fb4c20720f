// What NCCL's functions take and give, in words of our own, and only as far as a forwarded call needs it. RCCL's functions
// are the same.
// - What is passed by value has the size and the class of the vendor's type.
// - What is passed by address is the caller's own, and is handed on as it is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::interpose {

enum Result : int {
  kSuccess = 0,
  kUnhandledDeviceError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8  // since 2.30.3
};

using Type = int;  // of data
using Op = int;
using Comm = void *;
using Stream = void *;
using Window = void *;
using Param = void *;
struct Config;
struct CollConfig;

// The beginnings of NCCL's two configurations, as far as they are read here. `size` says how much of the structure the
// program has.
struct ConfigHead {
  size_t size;
  unsigned int magic, version;
  int blocking;
  int unused[3];
  const char *netName;
  int unused_too[2];
  const char *commName;
};
// An option for a library other than the vendor's. The vendor's library passes it by.
struct ConfigExt {
  const ConfigExt *next;
  struct {
    int vendorId, optionId;
  } key;
  union {
    int i;
    const char *s;
    void *raw;
  } val;
};
static_assert(sizeof(ConfigExt) == 24);
struct CollConfigHead {
  size_t size;
  unsigned int magic, version;
  const ConfigExt *ext;
  int unused[4];
  const char *algSelection;
  int forceAlgSelection;
  int unused_too[3];
  void *launchCompletionEvent;
};
// What a communicator can do. The program says in `size` how much of the structure it knows.
struct PropertiesHead {
  size_t size;
  unsigned int magic, version;
  int rank, nRanks, cudaDev, nvmlDev;
};

// Passed in memory: a copy on the caller's stack on x86-64, the address of a copy on AArch64.
struct UniqueId {
  unsigned char bytes[128];
};
static_assert(sizeof(UniqueId) == 128 && alignof(UniqueId) == 1);

// Passed in two registers.
struct Team {
  int size, rank, stride;
};
static_assert(sizeof(Team) == 12);

// Passed in one register.
struct Multimem {
  void *base;
};
static_assert(sizeof(Multimem) == 8);

}  // namespace isthmus::interpose
