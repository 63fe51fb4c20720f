// What HCCL's functions take and give, in words of our own, and only as far as a call needs it: the same rules as in
// abi.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace isthmus::interpose {

enum Result : int;  // its numbers are each vendor's own

namespace hccl {

using interpose::Result;
constexpr Result kSuccess{0}, kParameter{1}, kPointer{2}, kInternalError{4}, kNotSupported{5}, kNotFound{6}, kUnavailable{7},
    kSystem{8}, kTimeout{9}, kRuntime{15}, kAgain{20}, kRemote{21};

using Type = int;  // of data
using Op = int;
using Kind = int;  // any other enumeration
using Comm = void *;
using Stream = void *;
using Window = void *;
using Team = void *;
using Handle = uint64_t;  // of a channel, a thread, an instance
using Function = void (*)();
struct Config;

// The beginning of a configuration, as far as it is read here. `size` says how much of the structure the program has.
struct ConfigHead {
  size_t size;
  uint32_t magic, version;
  uint64_t unused;
  uint32_t unused_too[2];
  char name[128];
};
static_assert(offsetof(ConfigHead, name) == 32);

struct RootInfo {
  unsigned char bytes[4108];
};

// One message of HcclBatchSendRecv.
struct Message {
  int what;  // 0: sends, 1: receives
  void *buffer;
  uint64_t count;
  Type type;
  uint32_t peer;
};
static_assert(sizeof(Message) == 32);

// A union at HCCL, passed in one register.
struct Setting {
  int32_t value;
};
static_assert(sizeof(Setting) == 4);

}  // namespace hccl
}  // namespace isthmus::interpose
