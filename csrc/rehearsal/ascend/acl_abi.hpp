// The part of the binary interface of Huawei's runtime library (ACL) that the rehearsal offers, in declarations of our own, and what the
// files of the skin share. The numbers are Huawei's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <type_traits>

#include "core/lock.hpp"
#include "core/skin.hpp"

namespace rehearsal::acl {

using Result = int;
using StreamHandle = void *;
using EventHandle = void *;
using ContextHandle = void *;
using GraphHandle = void *;

enum : Result {
  kSuccess = 0,
  kInvalidParameter = 100000,  // the interface's own check; kInvalidValue: a check of the driver below
  kUninitialized = 100001,
  kAlreadyInitialized = 100002,
  kAlreadyFinalized = 100037,
  kInvalidValue = 107000,
  kInvalidDevice = 107001,
  kNoContext = 107002,
  kOtherContext = 107003,  // the stream is of another context than the thread's
  kInvalidTimestamp = 107006,
  kStreamSubscribed = 107011,
  kThreadNotSubscribed = 107012,
  kStreamNotSubscribed = 107015,
  kInvalidHandle = 107017,
  kEventCaptured = 107028,
  kNotCapturing = 107029,
  kCaptureUnsupported = 107030,
  kCaptureUnmatched = 107036,
  kNotSupported = 207000,
  kOutOfMemory = 207001,
  kNoDevice = 207004,
  kNotPermitted = 207006,
  kInternal = 507000,
  kEventNotComplete = 507006,
  kReportTimeout = 507012,
  kStreamTimeout = 507046,
  kEventTimeout = 507047,
  kMemoryFailed = 507053,
  kCaptureInvalidated = 507903,
  kHostRegistered = 507910,
  kHostNotRegistered = 507911
};

constexpr int32_t kMajorVersion = 1, kMinorVersion = 17, kPatchVersion = 0;

enum Attribute : int {
  kAicores = 101,
  kCubeCores = 102,
  kVectorCores = 201,
  kMemoryBytes = 301,
  kCacheBytes = 302,
  kSystem = 401,
  kChip = 402,
  kVirtual = 501
};
enum MemoryKind : int { kHbm = 1, kHbmHuge = 4, kHbmNormal = 5 };

// Where memory is.
enum Location : int { kOnHost = 0, kOnDevice = 1, kUnregistered = 2 };
struct PointerAttributes {
  uint32_t device;
  int location;
  uint32_t page;
  uint32_t reserved[4];
};
static_assert(sizeof(PointerAttributes) == 28);
struct Uuid {
  char bytes[16];
};

enum : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefaultDirection = 4 };
enum : int { kLastMallocPolicy = 7 };
enum : int { kRegisterMapped = 0, kRegisterIo = 4, kRegisterReadOnly = 8 };
enum : uint32_t { kMapped = 0x2, kIoMemory = 0x4, kReadOnly = 0x8, kPinned = 0x10000000 };
enum : uint32_t { kFastLaunch = 1, kFastSync = 2, kLastStreamFlag = 0x20 };
enum : uint32_t { kSync = 0x1, kProgress = 0x2, kTimeline = 0x8, kDeviceOnly = 0x10, kExternal = 0x20, kIpc = 0x40 };
enum : uint32_t { kAtLeast = 0, kEqual = 1, kAnd = 2, kNor = 3 };
enum : int { kStreamComplete = 0, kStreamNotReady = 1 };
enum : int { kEventNotRecorded = 0, kEventRecorded = 1 };  // 1 is done; for streams 0 is
enum : int { kWaitsComplete = 0, kWaitsNotReady = 1 };
enum : int { kCallbackNoBlock = 0, kCallbackBlock = 1 };
enum : int { kNotCaptured = 0, kCaptureActive = 1, kCaptureInvalid = 2 };
enum : int { kCaptureGlobal = 0, kCaptureThread = 1, kCaptureRelaxed = 2 };

// Settings that only Huawei's devices have.
struct Options {
  bool stream_values = false;  // REHEARSAL_ACL_STREAM_VALUES
  bool host_functions = true;  // not with REHEARSAL_ACL_NO_HOST_FUNC
};
const Options &options();

// ---- contexts -------------------------------------------------------------------------------------------------------------

struct AclStream;

// A stream belongs to a context. aclrtSetDevice() makes a device's own context (`of_device`); a program can make more contexts for the
// device.
struct Context {
  explicit Context(Device &d) : device(d) {}
  Device &device;
  ContextHandle handle = nullptr;
  bool of_device = false;
  std::atomic<bool> live{true};
  std::shared_ptr<AclStream> default_stream;  // the stream of a null handle
  Mutex mutex;
  std::set<uint64_t> streams ISTHMUS_GUARDED_BY(mutex);  // handles; they end with the context
};
using ContextPtr = std::shared_ptr<Context>;

struct Reports;  // the callbacks that wait for one thread

struct AclStream final : Stream {
  AclStream(const ContextPtr &c, Queue &q, unsigned f, int p, bool own) : Stream(c->device, q, f, p, own), context(c) {}
  const std::weak_ptr<Context> context;
  int32_t id = 0;
  Mutex report_mutex;
  // Of the thread that runs this stream's callbacks; null: none.
  std::shared_ptr<Reports> reports ISTHMUS_GUARDED_BY(report_mutex);
  uint64_t report_thread ISTHMUS_GUARDED_BY(report_mutex) = 0;
};
using AclStreamPtr = std::shared_ptr<AclStream>;

struct AclEvent final : Event {
  uint32_t flags = 0;
  bool plain = false;           // made by aclrtCreateEventExWithFlag: no reset, no query of waits
  std::atomic<int> waiting{0};  // waits of streams that are not done
};
using AclEventPtr = std::shared_ptr<AclEvent>;

ContextPtr make_context(Device &d);
ContextPtr current_context();  // of this thread; null: none
// Destroys all streams of a context, when their work is done. Fails for a stream that captures.
Result drop_streams(const Entry &e, Context &c);
// The stream of a handle, which must belong to the context `c`.
Result find_stream(const Entry &e, const ContextPtr &c, StreamHandle h, AclStreamPtr *out);
bool may_touch(int device, int other);  // whether one device may touch the memory of the other

// ---- calls ----------------------------------------------------------------------------------------------------------------

bool initialized();
bool start();               // starts the machine at the first call; false: there is no device
Result remember(Result r);  // keeps an error for aclGetRecentErrMsg(); returns `r`

// Huawei's number for an outcome. `d`: the device whose failure Broken means.
Result number(Code code, const Device *d = nullptr);

// The beginning of every function. Not kSuccess: the function returns this result at once.
inline Result gate(const Entry &e) {
  if (e.in_child()) return kInternal;
  if (in_host_function()) return number(misuse(e.name(), Code::NotPermitted, "called by a host function"));
  return fault_of(e);
}

// One call of the function `name`. If body() takes a context, the thread must have one.
template <Name name, class Body>
Result call(Body body) {
  static Counter &this_counter = counter(name.text);
  const Entry entry(this_counter);
  if (const Result stop = gate(entry)) return remember(stop);
  if constexpr (std::is_invocable_v<Body, const Entry &, const ContextPtr &>) {
    if (!initialized()) return remember(kUninitialized);
    const ContextPtr context = current_context();
    return remember(context ? body(entry, context) : static_cast<Result>(kNoContext));
  } else {
    return remember(body(entry));
  }
}

// The same for a function that works on a stream of the thread's context.
template <Name name, class Body>
Result call_on(StreamHandle h, Body body) {
  return call<name>([&](const Entry &e, const ContextPtr &c) -> Result {
    AclStreamPtr s;
    if (const Result r = find_stream(e, c, h, &s)) return r;
    return body(e, s);
  });
}

}  // namespace rehearsal::acl
