// The part of the CUDA driver's binary interface that the rehearsal offers, in declarations of our own. The numbers are NVIDIA's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/skin.hpp"

namespace rehearsal::cuda {

using Result = int;
using DeviceNumber = int;
using Address = unsigned long long;
using Context = void *;
using StreamHandle = void *;
using EventHandle = void *;
using GraphHandle = void *;

enum : Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
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
  kNotPermitted = 800,
  kNotSupported = 801,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCapturedEvent = 907,
  kUnknown = 999
};

// NVIDIA's number for an outcome. `d`: the device whose failure Broken means.
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
    case Code::NotPermitted: return kNotPermitted;
    case Code::Broken: return d && d->broken() ? d->broken() : kUnknown;
    case Code::Lost: return kContextDestroyed;
  }
  return kUnknown;
}

// The beginning of every function. Not kSuccess: the function returns this result at once.
inline Result gate(const Entry &e, bool needs_init) {
  if (e.in_child()) return kNotInitialized;
  if (in_host_function()) return number(misuse(e.name(), Code::NotPermitted, "called by a host function"));
  if (const int fault = fault_of(e)) return fault;
  if (needs_init && !Machine::started())
    return misuse(e.name(), Code::Invalid, "called before cuInit"), static_cast<Result>(kNotInitialized);
  return kSuccess;
}

#define CUDA_CALL_EARLY(name, needs_init)                                 \
  static ::rehearsal::Counter &this_counter = ::rehearsal::counter(name); \
  const ::rehearsal::Entry entry(this_counter);                           \
  if (const ::rehearsal::cuda::Result stop = gate(entry, needs_init)) return stop
#define CUDA_CALL(name) CUDA_CALL_EARLY(name, true)

// Goes on with the current device, as `device`. Returns from the function if there is none, or if a reset has ended its primary context.
#define CUDA_CURRENT()                                    \
  ::rehearsal::Device *const device = current(entry);     \
  if (!device) return ::rehearsal::cuda::kInvalidContext; \
  if (device->ended.load(std::memory_order_acquire)) return ::rehearsal::cuda::kContextDestroyed

Device *current(const Entry &e);  // null: none, which is a misuse

bool stream_values();  // whether streams can wait for values and write values: not with REHEARSAL_CUDA_NO_STREAM_VALUES

// The stream of a handle. find_here() is for calls that submit work: the stream must be of the current device.
Result find(const Entry &e, Device &d, StreamHandle h, StreamPtr *out);
Result find_here(const Entry &e, Device &d, StreamHandle h, StreamPtr *out);

}  // namespace rehearsal::cuda
