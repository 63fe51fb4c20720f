// What HCCL's functions take and give, in our own words and only as far as a forwarded call needs it: as abi.hpp says of NCCL's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::interpose {

enum Result : int { kSuccess = 0, kInternalError = 4, kNotSupported = 5, kNotFound = 6 };

using Type = int;  // of data
using Op = int;
using Kind = int;  // any other enumeration
using Comm = void *;
using Stream = void *;
using Window = void *;
using Team = void *;
using Handle = uint64_t;  // of a channel, a thread, an instance
using Function = void (*)();
struct RootInfo;
struct Config;
struct Message;

// A union at HCCL, in one register.
struct Setting {
  int32_t value;
};
static_assert(sizeof(Setting) == 4);

}  // namespace isthmus::interpose
