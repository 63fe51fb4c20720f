// The part of the binary interface of Huawei's collective library (HCCL) that the rehearsal offers, in declarations of our own, and what
// the files of the skin share. The numbers are Huawei's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "core/calls.hpp"
#include "core/lock.hpp"
#include "core/skin.hpp"

namespace rehearsal::hccl {

using Result = int;
enum : Result {
  kSuccess = 0,
  kParameter = 1,
  kNullPointer = 2,
  kMemory = 3,
  kInternal = 4,
  kNotSupported = 5,
  kUnavailable = 7,
  kSystem = 8,
  kTimeout = 9,
  kConnect = 11,
  kTransfer = 13,
  kRuntime = 15,
  kDriver = 16,
  kNetwork = 19,
  kAgain = 20,
  kRemote = 21,
  kSuspended = 22,
  kOutOfMemory = 24
};

enum DataType : int {
  kInt8,
  kInt16,
  kInt32,
  kFloat16,
  kFloat32,
  kInt64,
  kUInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kFloat64,
  kBfloat16,
  kInt128,
  kHifloat8 = 14,
  kFloat8E4M3,
  kFloat8E5M2,
  kFloat8E8M0
};
enum ReduceOp : int { kSum, kProd, kMax, kMin, kOps };

struct RootInfo {
  unsigned char bytes[4108];
};

// The beginning of HcclCommConfig, as far as the rehearsal looks at it. `size`: how many bytes the program's struct has.
struct Config {
  size_t size;
  uint32_t magic;
  uint32_t version;
  uint64_t reserved;
  uint32_t buffer_megabytes;
  uint32_t deterministic;
  char name[128];
};
static_assert(offsetof(Config, magic) == 8 && offsetof(Config, buffer_megabytes) == 24 && offsetof(Config, name) == 32);
constexpr uint32_t kConfigMagic = 0xf0f0f0f0, kNotSet = 0xffffffff;
constexpr uint32_t kConfigCapability = 12;  // how many later fields of the struct the library knows
constexpr size_t kNameBytes = 128;
constexpr uint64_t kNoSubCommunicator = 0xffffffff;  // the number that a rank gives if it is no member

union Setting {
  int32_t value;
};
enum : int { kDeterministic = 0 };

struct BatchItem {  // a message of HcclBatchSendRecv
  int what;
  void *buffer;
  uint64_t count;
  int type;
  uint32_t peer;
};
static_assert(sizeof(BatchItem) == 32);
enum : int { kSend = 0, kReceive = 1 };

using CommHandle = void *;

struct Comm final : Communicator {
  using Communicator::Communicator;
  CommHandle handle = nullptr;
  Token token{};
  std::string name;
  std::atomic<bool> suspended{false};
  Mutex mutex;
  std::set<uint64_t> parts ISTHMUS_GUARDED_BY(mutex);  // numbers of the communicators that were made of some of the ranks
};
using CommPtr = std::shared_ptr<Comm>;

// The communicator of a handle. find_ready() wants a communicator that has no error and is not suspended. Not kSuccess: the call returns
// this result.
Result find(const Entry &e, CommHandle h, CommPtr *out);
Result find_ready(const Entry &e, CommHandle h, CommPtr *out);
// The thread's current device must be the communicator's.
Result check_device(const Entry &e, const Comm &c);

// ---- calls on a communicator ----------------------------------------------------------------------------------------------

// One call of the program, while the call is made.
struct Call {
  Operation o;
  CommPtr comm;
};
struct Kind {
  Type type = Type::U8;  // the engine's type; of types that the engine has not, one of the same width
  size_t width = 0;      // 0: no such type
  bool reduces = false;
};
Kind kind_of(int type);

// The steps of a call:
//
//   1. begin() finds the communicator and the stream.
//   2. resolve() finds each buffer.
//   3. commit() puts the operation into the group; without a group it launches the operation.
Call new_call(const Entry &e);
Result begin(Call &c, CommHandle h, void *stream);
Result resolve(Call &c, const char *role, const void *p, uint64_t bytes, std::byte **out);
enum class Sort { Init, Collective, Messages };  // a group has calls of one sort
Result commit(Call &&c, Sort sort);

// Groups of calls. An init in a group runs when the group ends.
bool in_group();
Result defer_init(std::function<Result()> init);
Result note(Result r);  // the first failure of a call in a group is the result of the group

// The beginning of every function. Not kSuccess: the function returns this result at once.
inline Result gate(const Entry &e) {
  if (e.in_child()) return kRuntime;
  if (in_host_function()) {
    misuse(e.name(), Code::NotPermitted, "called by a host function");
    return kRuntime;
  }
  return note(e.fault());
}

#define HCCL_CALL(name)                                                   \
  static ::rehearsal::Counter &this_counter = ::rehearsal::counter(name); \
  const ::rehearsal::Entry entry(this_counter);                           \
  if (const ::rehearsal::hccl::Result stop = ::rehearsal::hccl::gate(entry)) return stop

}  // namespace rehearsal::hccl
