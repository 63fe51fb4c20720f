// The part of NCCL's binary interface that the rehearsal offers, in declarations of our own, and what the files of the skin share. AMD's
// RCCL has the same names, numbers and errors, and is built of the same files. RCCL has another version, and its streams are HIP's.
#pragma once

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
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

// The beginning of ncclConfig_t, as far as the rehearsal looks at it. `size`: how many bytes the program's struct has.
struct Config {
  size_t size;
  uint32_t magic;
  uint32_t version;
  int32_t blocking;
};
static_assert(offsetof(Config, magic) == 8 && offsetof(Config, version) == 12 && offsetof(Config, blocking) == 16);
constexpr uint32_t kConfigMagic = 0xcafebeef;
constexpr int32_t kUndefined = INT_MIN;

struct SimInfo {  // ncclSimInfo_t: how long a group would take
  size_t size;
  uint32_t magic;
  uint32_t version;
  float seconds;
};
constexpr uint32_t kSimInfoMagic = 0x74685283;
constexpr int kShrinkAbort = 1;  // a flag of ncclCommShrink: aborts the work of the old communicator

constexpr int kTypes = 12, kOps = 5;
static_assert(static_cast<int>(Type::I8) == 0 && static_cast<int>(Type::U64) == 5 && static_cast<int>(Type::F16) == 6 &&
              static_cast<int>(Type::BF16) == 9 && static_cast<int>(Type::E5M2) == 11);
static_assert(static_cast<int>(Reduction::Sum) == 0 && static_cast<int>(Reduction::Prod) == 1 &&
              static_cast<int>(Reduction::Max) == 2 && static_cast<int>(Reduction::Min) == 3 &&
              static_cast<int>(Reduction::Avg) == 4);

// What the program's ncclComm_t points to. Real communicators begin with the same number. A handle is never freed, so the handle of a
// destroyed communicator is known for what it was.
struct Handle {
  uint64_t magic = 0x0280028002800280;
};
using CommHandle = Handle *;

// The scalar of ncclRedOpCreatePreMulSum.
struct Scalar {
  int type = 0;
  uint64_t value = 0;
  Place place;  // the scalar is in memory of a device, and is read from here when the work runs; not found: `value` has it
};

// Up to version 2.25 the job of a group that ends later lies in memory of the thread that ended the group, until a call that needs one of the group's
// communicators completes the job. ncclCommGetAsyncError does not.
struct ThreadJob {
  std::set<const Communicator *> comms;
  std::atomic<bool> completed{false}, thread_gone{false};
};

struct Comm final : Communicator {
  using Communicator::Communicator;
  CommHandle handle = nullptr;
  bool blocking = true;
  Token token{};         // by which the ranks met
  bool patient = false;  // as for Communicator::join()
  Mutex mutex;
  std::atomic<bool> revoked{false};
  std::map<std::set<int>, uint64_t> shrinks ISTHMUS_GUARDED_BY(mutex);  // excluded ranks -> shrinks so far
  uint64_t grows ISTHMUS_GUARDED_BY(mutex) = 0;                         // so far
  bool promised_grow ISTHMUS_GUARDED_BY(mutex) = false;                 // this rank has made an id for the next one
  std::shared_ptr<ThreadJob> job ISTHMUS_GUARDED_BY(mutex);             // of the last group
  std::map<int, Scalar> scalars ISTHMUS_GUARDED_BY(mutex);
  int next_op ISTHMUS_GUARDED_BY(mutex) = kOps;

  // The state that the program sees. With Machine::blocking a call on a non-blocking communicator does not wait for its work; the
  // communicator is in progress until the work is done.
  Result now() {
    if (lost()) return kUnhandledCuda;
    const Result said = state.load();
    return said == kSuccess && !blocking && Machine::get().blocking.load() && busy() ? static_cast<Result>(kInProgress)
                                                                                     : said;
  }
};
using CommPtr = std::shared_ptr<Comm>;

// The communicator of a handle. find_ready() wants a communicator that has no error and is not in progress. Not kSuccess: the call
// returns this result.
Result find(const Entry &e, CommHandle h, CommPtr *out);
Result find_ready(const Entry &e, CommHandle h, CommPtr *out);
void complete_job(const Entry &e, Comm &comm);  // of the communicator's last group
int version();                                  // that the library says
// Returns `r`. The text is for ncclGetLastError.
Result say(Result r, const char *format, ...) __attribute__((format(printf, 2, 3)));

constexpr Library kLibrary = library_named(REHEARSAL_NCCL_LIBRARY);
// Makes a communicator and joins the other ranks. `patient`: as for Communicator::join().
Result start(const Entry &e, CommHandle *out, Device &d, int size, const Token &token, int rank, bool blocking,
             bool patient = false, const RootAddress &root = {});
Result init(const Entry &e, CommHandle *out, int size, const UniqueId &id, int rank, const Config *config,
            std::span<const UniqueId> further = {});
Result read(const Config *config, bool *blocking);

// Groups of calls. An init in a group runs when the group ends.
bool in_group();
void defer_init(std::function<Result()> init);
Result note(Result r);  // the first failure of a call in a group is the result of the group

// The beginning of every function. Not kSuccess: the function returns this result at once.
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
