// The simulated libamdhip64.so: start, devices, names of errors.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "amd/hip_abi.hpp"

namespace rehearsal::hip {
namespace {

constexpr const char *kDeviceName = "Simulated AMD device (Isthmus rehearsal)";

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
constexpr const char *kRuntimeName = "AMD runtime (HIP " TEXT(HIP_MAJOR) ")";

// "942" is major 9, minor 4, stepping 2. The stepping may be a letter ("90a").
void read_gfx(const char *text, Options &o) {
  const size_t digits = std::strlen(text);
  const bool right = digits >= 3 && digits <= 4 && std::strspn(text, "0123456789") >= digits - 1 &&
                     std::strspn(text, "0123456789abcdef") == digits;
  if (!right) {
    std::fprintf(stderr, "rehearsal: REHEARSAL_GFX: cannot read \"%s\"\n", text);
    std::abort();
  }
  o.major = std::atoi(std::string(text, digits - 2).c_str());
  o.minor = text[digits - 2] - '0';
}

Options read() {
  Options o;
  if (const char *text = std::getenv("REHEARSAL_GFX"); text && *text) read_gfx(text, o);
  o.signal_memory = !switched_on("REHEARSAL_HIP_NO_SIGNAL_MEMORY");
  o.wait_anywhere = !o.signal_memory || switched_on("REHEARSAL_HIP_WAIT_ANYWHERE");
  return o;
}

Result &last_error() {
  static thread_local Result error = kSuccess;
  return error;
}

// The answer to a question about device `n`; no such device is a misuse.
template <class Answer>
Result about(const Entry &e, int n, Answer answer) {
  if (Machine::get().device(n)) return answer();
  return number(misuse(e.name(), Code::NoDevice, "no device %d", n));
}

struct HipErrorText {
  Result code;
  const char *name, *text;
};
constexpr HipErrorText kErrors[] = {
    {kSuccess, "hipSuccess", "no error"},
    {kInvalidValue, "hipErrorInvalidValue", "invalid argument"},
    {kOutOfMemory, "hipErrorOutOfMemory", "out of memory"},
    {kNotInitialized, "hipErrorNotInitialized", "initialization error"},
    {kInvalidDirection, "hipErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {kNoDevice, "hipErrorNoDevice", "no ROCm-capable device is detected"},
    {kInvalidDevice, "hipErrorInvalidDevice", "invalid device ordinal"},
    {kInvalidContext, "hipErrorInvalidContext", "invalid device context"},
    {kInvalidHandle, "hipErrorInvalidHandle", "invalid resource handle"},
    {kIllegalState, "hipErrorIllegalState", "the operation cannot be performed in the present state"},
    {kNotFound, "hipErrorNotFound", "named symbol not found"},
    {kNotReady, "hipErrorNotReady", "device not ready"},
    {kIllegalAddress, "hipErrorIllegalAddress", "an illegal memory access was encountered"},
    {kContextDestroyed, "hipErrorContextIsDestroyed", "context is destroyed"},
    {kAlreadyRegistered, "hipErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {kNotRegistered, "hipErrorHostMemoryNotRegistered", "pointer does not correspond to a registered memory region"},
    {kLaunchFailed, "hipErrorLaunchFailure", "unspecified launch failure"},
    {kNotSupported, "hipErrorNotSupported", "operation not supported"},
    {kCaptureUnsupported, "hipErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "hipErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {kCaptureUnmatched, "hipErrorStreamCaptureUnmatched", "capture was not ended in the same stream as it began"},
    {kCapturedEvent, "hipErrorCapturedEvent", "operation not permitted on an event last recorded in a capturing stream"},
    {kUnknown, "hipErrorUnknown", "unknown error"},
};
const HipErrorText &text_of(Result code) {
  for (const HipErrorText &t : kErrors)
    if (t.code == code) return t;
  return kErrors[std::size(kErrors) - 1];
}

Result attribute(int which, int n, int *value) {
  if (which < 0 || which > kLastOfAmd || (which > kLastCommon && which < kFirstOfAmd)) return kInvalidValue;
  switch (which) {
    case kAsyncEngines: *value = 2; break;
    case kConcurrentKernels: *value = hardware_queues() > 1; break;
    case kHostPointersOnDevice: *value = settings().same_address; break;
    case kMajor: *value = options().major; break;
    case kMinor: *value = options().minor; break;
    case kPciBus: *value = pci_bus(n); break;
    case kPciDomain: *value = pci_domain(); break;
    case kWarpSize: *value = 64; break;
    case kMapsHostMemory:
    case kMultiprocessors:
    case kRegistersHostMemory:
    case kUnifiedAddressing:
    case kWaits: *value = 1; break;
    default: *value = 0; break;
  }
  return kSuccess;
}

}  // namespace

const Options &options() {
  static const Options *const the_options = new Options(read());
  return *the_options;
}

bool start() {
  static const bool has_devices = [] {
    options();
    if (settings().devices == 0) return false;
    limit_queues("GPU_MAX_HW_QUEUES");
    Machine &machine = Machine::get();
    machine.illegal_address.store(kIllegalAddress);
    machine.always_a_device.store(true);
    for (const char *name : {"HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY"})
      if (switched_on(name)) machine.blocking.store(true);
    announce_simulation(kRuntimeName);
    return true;
  }();
  return has_devices;
}

// Until version 6 hipGetLastError() has the result of the last call. From version 7 on it has the result of the last call that failed, and
// hipErrorNotReady is no failure.
Result remember(Result r) {
  if (HIP_MAJOR < 7 || (r != kSuccess && r != kNotReady)) last_error() = r;
  return r;
}

}  // namespace rehearsal::hip

using namespace rehearsal;
using namespace rehearsal::hip;

EXPORT Result hipInit(unsigned flags) {
  return call<"hipInit">([&](const Entry &, Device &) { return flags ? kInvalidValue : kSuccess; });
}

EXPORT Result hipDriverGetVersion(int *version) {
  return call<"hipDriverGetVersion">([&](const Entry &) -> Result {
    if (!version) return kInvalidValue;
    *version = kVersion;
    return kSuccess;
  });
}
EXPORT Result hipRuntimeGetVersion(int *version) {
  return call<"hipRuntimeGetVersion">([&](const Entry &) -> Result {
    if (!version) return kInvalidValue;
    *version = kVersion;
    return kSuccess;
  });
}

// ---- devices --------------------------------------------------------------------------------------------------------------

EXPORT Result hipGetDeviceCount(int *count) {
  return call<"hipGetDeviceCount">([&](const Entry &) -> Result {
    if (!count) return kInvalidValue;
    *count = settings().devices;
    return start() ? kSuccess : kNoDevice;
  });
}

EXPORT Result hipGetDevice(int *out) {
  return call<"hipGetDevice">([&](const Entry &, Device &device) -> Result {
    if (!out) return kInvalidValue;
    *out = device.ordinal();
    return kSuccess;
  });
}

EXPORT Result hipSetDevice(int n) {
  return call<"hipSetDevice">([&](const Entry &, Device &) -> Result {
    Device *d = Machine::get().device(n);
    if (!d) return kInvalidDevice;
    device_stack().assign(1, d);
    return kSuccess;
  });
}

EXPORT Result hipDeviceGet(int *out, int ordinal) {
  return call<"hipDeviceGet">([&](const Entry &, Device &) -> Result {
    if (!out) return kInvalidValue;
    if (!Machine::get().device(ordinal)) return kInvalidDevice;
    *out = ordinal;
    return kSuccess;
  });
}

EXPORT Result hipDeviceGetAttribute(int *value, int which, int n) {
  return call<"hipDeviceGetAttribute">([&](const Entry &e, Device &) {
    return about(e, n, [&]() -> Result { return value ? attribute(which, n, value) : kInvalidValue; });
  });
}

EXPORT Result hipDeviceGetName(char *name, int length, int n) {
  return call<"hipDeviceGetName">([&](const Entry &e, Device &) {
    return about(e, n, [&]() -> Result {
      if (!name || length < 1) return kInvalidValue;
      std::snprintf(name, static_cast<size_t>(length), "%s", kDeviceName);
      return kSuccess;
    });
  });
}

EXPORT Result hipDeviceGetUuid(unsigned char *uuid, int n) {
  return call<"hipDeviceGetUuid">([&](const Entry &e, Device &) {
    return about(e, n, [&]() -> Result {
      if (!uuid) return kInvalidValue;
      device_uuid(n, uuid);
      return kSuccess;
    });
  });
}

EXPORT Result hipDeviceGetPCIBusId(char *text, int length, int n) {
  return call<"hipDeviceGetPCIBusId">([&](const Entry &e, Device &) {
    return about(e, n, [&]() -> Result {
      if (!text || length < 13) return kInvalidValue;
      std::snprintf(text, static_cast<size_t>(length), "%04x:%02x:00.0", pci_domain(), pci_bus(n));
      return kSuccess;
    });
  });
}

EXPORT Result hipDeviceTotalMem(size_t *bytes, int n) {
  return call<"hipDeviceTotalMem">([&](const Entry &e, Device &) {
    return about(e, n, [&]() -> Result {
      if (!bytes) return kInvalidValue;
      *bytes = settings().memory;
      return kSuccess;
    });
  });
}

EXPORT Result hipDeviceSynchronize() {
  return call<"hipDeviceSynchronize">([&](const Entry &, Device &device) -> Result {
    { const auto lock = device.enter(); }
    device.wait_idle();
    return device.broken();
  });
}

// Takes all that the program has on the device. The device stays the thread's current one.
EXPORT Result hipDeviceReset() {
  return call<"hipDeviceReset">([&](const Entry &, Device &device) -> Result {
    reset(device, false);
    return kSuccess;
  });
}

// ---- errors ---------------------------------------------------------------------------------------------------------------

EXPORT Result hipGetLastError() {
  static Counter &this_counter = counter("hipGetLastError");
  const Entry entry(this_counter);
  return std::exchange(last_error(), kSuccess);
}
EXPORT Result hipPeekAtLastError() {
  static Counter &this_counter = counter("hipPeekAtLastError");
  const Entry entry(this_counter);
  return last_error();
}
EXPORT const char *hipGetErrorName(Result code) {
  static Counter &this_counter = counter("hipGetErrorName");
  const Entry entry(this_counter);
  return text_of(code).name;
}
EXPORT const char *hipGetErrorString(Result code) {
  static Counter &this_counter = counter("hipGetErrorString");
  const Entry entry(this_counter);
  return text_of(code).text;
}
