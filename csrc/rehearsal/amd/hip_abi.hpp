// The part of the binary interface of AMD's runtime library (HIP) that the rehearsal offers, in declarations of our own. The numbers are
// AMD's. The skin is compiled once for each major version of the library, which is HIP_MAJOR. What differs between the versions is in this
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/skin.hpp"

static_assert(HIP_MAJOR >= 5 && HIP_MAJOR <= 7);

namespace rehearsal::hip {

using Result = int;
using StreamHandle = void *;
using EventHandle = void *;
using GraphHandle = void *;

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDirection = 21,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kIllegalState = 401,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextDestroyed = 709,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kLaunchFailed = 719,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCapturedEvent = 907,
  kUnknown = 999
};

// A number that differs between the versions.
constexpr int by_version(int of_5, int of_6, int of_7) { return HIP_MAJOR == 5 ? of_5 : HIP_MAJOR == 6 ? of_6 : of_7; }

constexpr int kVersion = by_version(50221153, 60342134, 70051831);

enum Attribute : int {
  kAsyncEngines = 2,
  kMapsHostMemory = 3,
  kHostPointersOnDevice = 4,
  kConcurrentKernels = 8,
  kIntegrated = 16,
  kMajor = 23,
  kManagedMemory = 24,
  kMinor = 61,
  kMultiprocessors = 63,
  kPciBus = 67,
  kPciDevice = 68,
  kPciDomain = 69,
  kUnifiedAddressing = 85,
  kWarpSize = 87,
  kRegistersHostMemory = 90,
  kNuma = 92,
  kLastCommon = by_version(88, 91, 95),
  kFirstOfAmd = 10000,
  kWaits = 10013,
  kLastOfAmd = by_version(10016, 10017, 10022)
};

// Kinds of memory. Since version 6 the numbers are CUDA's.
enum MemoryType : int {
  kUnregistered = by_version(-1, 0, 0),  // version 5 has no such kind, and answers with an error
  kHost = by_version(0, 1, 1),
  kDevice = by_version(1, 2, 2)
};
struct PointerAttributes {
  int type;
  int device;
  void *device_pointer;
  void *host_pointer;
  int managed;
  unsigned flags;
};
static_assert(sizeof(PointerAttributes) == 32);

// Directions of copies, comparisons of waits, flags.
enum : int { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefaultDirection = 4 };
enum : unsigned { kAtLeast = 0, kEqual = 1, kAnd = 2, kNor = 3 };
enum : unsigned { kFineGrained = 1, kSignalMemory = 2 };
enum : unsigned { kPortable = 1, kMapped = 2, kWriteCombined = 4, kIoMemory = 4, kCoarseGrained = 8 };
enum : unsigned { kNumaUser = 0x20000000, kCoherent = 0x40000000, kNonCoherent = 0x80000000 };
enum : unsigned { kBlockingSync = 1, kDisableTiming = 2, kInterprocess = 4 };
enum : unsigned { kDisableSystemFence = 0x20000000, kReleaseToDevice = 0x40000000, kReleaseToSystem = 0x80000000 };

// AMD's number for an outcome. `d`: the device whose failure Broken means.
inline Result number(Code code, const Device *d = nullptr) {
  switch (code) {
    case Code::Ok: return kSuccess;
    case Code::Invalid: return kInvalidValue;
    case Code::NoMemory: return kOutOfMemory;
    case Code::NotReady: return kNotReady;
    case Code::NoContext: return kInvalidContext;
    case Code::NoDevice: return kInvalidDevice;
    case Code::BadHandle: return kInvalidHandle;
    case Code::Registered: return kAlreadyRegistered;
    case Code::NotRegistered: return kNotRegistered;
    case Code::Illegal: return kIllegalAddress;
    case Code::IllegalState: return kIllegalState;
    case Code::CaptureUnsupported: return kCaptureUnsupported;
    case Code::CaptureInvalidated: return kCaptureInvalidated;
    case Code::CaptureUnmatched: return kCaptureUnmatched;
    case Code::CapturedEvent: return kCapturedEvent;
    case Code::NotPermitted: return kNotSupported;  // HIP has no closer number
    case Code::Broken: return d && d->broken() ? d->broken() : kUnknown;
    case Code::Lost: return kContextDestroyed;
  }
  return kUnknown;
}

// Settings that only AMD's devices have.
struct Options {
  int major = 9, minor = 4;    // REHEARSAL_GFX: the architecture, 942 if not set. gfx942 has another float8 than gfx950.
  bool signal_memory = true;   // not with REHEARSAL_HIP_NO_SIGNAL_MEMORY
  bool wait_anywhere = false;  // REHEARSAL_HIP_WAIT_ANYWHERE, or no signal memory: waits on any host memory
};
const Options &options();

// Starts the machine at the first call of any function. False: there is no device.
bool start();

// Keeps a result for hipGetLastError(); returns `r`.
Result remember(Result r);

// The beginning of every function. Not kSuccess: the function returns this result at once.
inline Result gate(const Entry &e) {
  if (e.in_child()) return kNotInitialized;
  if (in_host_function()) return number(misuse(e.name(), Code::NotPermitted, "called by a host function"));
  return fault_of(e);
}

// One call of the function `name`. If body() takes a device, it gets the thread's current device.
template <Name name, class Body>
Result call(Body body) {
  static Counter &this_counter = counter(name.text);
  const Entry entry(this_counter);
  if (const Result stop = gate(entry)) return remember(stop);
  if constexpr (std::is_invocable_v<Body, const Entry &, Device &>) {
    if (!start()) return remember(kNoDevice);
    return remember(body(entry, *current_device()));
  } else {
    return remember(body(entry));
  }
}

}  // namespace rehearsal::hip
