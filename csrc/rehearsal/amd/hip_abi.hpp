// The part of the binary interface of AMD's runtime library that the rehearsal offers, in our own words. Numbers are AMD's. HIP_MAJOR says
// which library the file is compiled for: what differs between them is here.
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

// What kind of memory a pointer means. Version 6 took CUDA's numbers.
enum MemoryType : int {
  kUnregistered = by_version(-1, 0, 0),  // version 5 has none: it answers with an error
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
    case Code::NotPermitted: return kNotSupported;  // there is no other number for it
    case Code::Broken: return d && d->broken() ? d->broken() : kUnknown;
    case Code::Lost: return kContextDestroyed;
  }
  return kUnknown;
}

// What only AMD's devices have in the environment.
struct Options {
  int major = 9, minor = 4;    // REHEARSAL_GFX: 942, whose float8 is not that of the others; 950's is
  bool signal_memory = true;   // not with REHEARSAL_HIP_NO_SIGNAL_MEMORY
  bool wait_anywhere = false;  // REHEARSAL_HIP_WAIT_ANYWHERE: on registered host memory, too. So it is without signal memory
};
const Options &options();

// The runtime starts with whatever call comes first. False: there is no device.
bool start();

// The result that hipGetLastError() tells.
Result remember(Result r);

inline Result gate(const Entry &e) {
  if (e.in_child()) return kNotInitialized;
  if (in_host_function()) return number(misuse(e.name(), Code::NotPermitted, "called by a host function"));
  return fault_of(e);
}

// One call of that function. `body` gets the entry, and the thread's device if it asks for it.
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
