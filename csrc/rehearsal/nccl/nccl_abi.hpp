// The part of NCCL's binary interface that the rehearsal offers, in our own words, and what the files of the skin share. AMD's RCCL has the
// same names, numbers and errors, and is built of the same files: a stream's handle is HIP's there, and the version another.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "core/calls.hpp"
#include "core/lock.hpp"
#include "core/skin.hpp"

namespace rehearsal::nccl {

using Result = int;
enum : Result {
  kSuccess = 0,
  kUnhandledCuda = 1,
  kSystem = 2,
  kInternal = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemote = 6,
  kInProgress = 7
};

struct UniqueId {  // passed by value
  unsigned char bytes[128];
};

// Only what the rehearsal looks at; the caller's `size` says how much of it is there.
struct Config {
  size_t size;
  uint32_t magic;
  uint32_t version;
  int32_t blocking;
};
static_assert(offsetof(Config, magic) == 8 && offsetof(Config, version) == 12 && offsetof(Config, blocking) == 16);
constexpr uint32_t kConfigMagic = 0xcafebeef;
constexpr int32_t kUndefined = INT_MIN;

struct SimInfo {  // what a simulated group is told about
  size_t size;
  uint32_t magic;
  uint32_t version;
  float seconds;
};
constexpr uint32_t kSimInfoMagic = 0x74685283;
constexpr int kShrinkAbort = 1;  // of ncclCommShrink: ends what the whole still has to do

constexpr int kTypes = 12, kOps = 5;
static_assert(static_cast<int>(Type::I8) == 0 && static_cast<int>(Type::U64) == 5 && static_cast<int>(Type::F16) == 6 &&
              static_cast<int>(Type::BF16) == 9 && static_cast<int>(Type::E5M2) == 11);
static_assert(static_cast<int>(Reduction::Sum) == 0 && static_cast<int>(Reduction::Prod) == 1 &&
              static_cast<int>(Reduction::Max) == 2 && static_cast<int>(Reduction::Min) == 3 &&
              static_cast<int>(Reduction::Avg) == 4);

// What the program holds. The number is what real communicators begin with. Never freed, so a stale one is known for what it is.
struct Handle {
  uint64_t magic = 0x0280028002800280;
};
using CommHandle = Handle *;

struct Scalar {
  int type = 0;
  uint64_t value = 0;
  Place place;  // where it is read when the work runs, if the program left it on the device
};

struct Comm final : Communicator {
  using Communicator::Communicator;
  CommHandle handle = nullptr;
  bool blocking = true;
  Token token{};         // by which its ranks met
  bool patient = false;  // whoever listens for them may come later
  Mutex mutex;
  std::map<std::set<int>, uint64_t> shrinks ISTHMUS_GUARDED_BY(mutex);  // without these ranks, so often
  std::map<int, Scalar> scalars ISTHMUS_GUARDED_BY(mutex);
  int next_op ISTHMUS_GUARDED_BY(mutex) = kOps;

  // Where launches block, a communicator that does not has a thread that waits for them.
  Result now() {
    if (lost()) return kUnhandledCuda;
    const Result said = state.load();
    return said == kSuccess && !blocking && Machine::get().blocking.load() && busy() ? static_cast<Result>(kInProgress)
                                                                                     : said;
  }
};
using CommPtr = std::shared_ptr<Comm>;

// kSuccess, or why a call on this communicator cannot go on.
Result find(const Entry &e, CommHandle h, CommPtr *out);
Result find_ready(const Entry &e, CommHandle h, CommPtr *out);
Result say(Result r, const char *format, ...) __attribute__((format(printf, 2, 3)));  // for ncclGetLastError

// Groups of calls. An init inside of one runs when it ends.
bool in_group();
void defer_init(std::function<Result()> init);
Result note(Result r);  // the first failure inside a group is the group's

inline Result gate(const Entry &e) {
  if (e.in_child()) return kUnhandledCuda;
  if (in_host_function()) {
    misuse(e.name(), Code::NotPermitted, "called by a host function");
    return kInvalidUsage;
  }
  return note(e.fault());
}

#define NCCL_CALL(name)                                                   \
  static ::rehearsal::Counter &this_counter = ::rehearsal::counter(name); \
  const ::rehearsal::Entry entry(this_counter);                           \
  if (const ::rehearsal::nccl::Result stop = ::rehearsal::nccl::gate(entry)) return stop

}  // namespace rehearsal::nccl
