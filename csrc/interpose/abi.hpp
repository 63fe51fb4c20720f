// What NCCL's functions take and give, in our own words and only as far as a forwarded call needs it: what is passed by value has the
// vendor's size and class, what is passed by address is the caller's own and is handed on as it is. RCCL's are the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::interpose {

enum Result : int { kSuccess = 0, kSystemError = 2, kInternalError = 3, kInvalidUsage = 5 };

using Type = int;  // of data
using Op = int;
using Comm = void *;
using Stream = void *;
using Window = void *;
using Param = void *;
struct Config;
struct CollConfig;

// In memory: a copy on the caller's stack on x86-64, the address of one on AArch64.
struct UniqueId {
  unsigned char bytes[128];
};
static_assert(sizeof(UniqueId) == 128 && alignof(UniqueId) == 1);

// In two registers.
struct Team {
  int size, rank, stride;
};
static_assert(sizeof(Team) == 12);

// In one register.
struct Multimem {
  void *base;
};
static_assert(sizeof(Multimem) == 8);

}  // namespace isthmus::interpose
