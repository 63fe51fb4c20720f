// The simulated libcuda.so.1: start, devices, contexts, names of errors, entry points.
#include <dlfcn.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "nvidia/cuda_abi.hpp"

namespace rehearsal::cuda {

Device *current(const Entry &e) {
  Device *d = current_device();
  if (!d) misuse(e.name(), Code::NoContext, "no context is current in this thread");
  return d;
}

bool stream_values() {
  static const bool they_do = !switched_on("REHEARSAL_CUDA_NO_STREAM_VALUES");
  return they_do;
}

namespace {

constexpr int kDriverVersion = 13000;
constexpr const char *kDeviceName = "Simulated NVIDIA device (Isthmus rehearsal)";

// A handle of a context is a number made of the device's number, and no pointer.
constexpr uint64_t kContexts = uint64_t{0x90} << 48;
Context context_of(const Device *d) {
  return d ? reinterpret_cast<Context>(kContexts + (static_cast<uint64_t>(d->ordinal() + 1) << 4)) : nullptr;
}
Device *device_of(Context c) {
  const uint64_t n = (reinterpret_cast<uint64_t>(c) - kContexts) >> 4;
  return n >= 1 && n <= 4096 ? Machine::get().device(static_cast<int>(n) - 1) : nullptr;
}

Device *numbered(const Entry &e, DeviceNumber n) {
  Device *d = Machine::get().device(n);
  if (!d) misuse(e.name(), Code::NoDevice, "no device %d", n);
  return d;
}

struct CudaErrorText {
  Result code;
  const char *name, *text;
};
constexpr CudaErrorText kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kIllegalState, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kContextDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {kAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {kNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {kCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {kCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {kCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

}  // namespace
}  // namespace rehearsal::cuda

using namespace rehearsal;
using namespace rehearsal::cuda;

EXPORT Result cuInit(unsigned flags) {
  CUDA_CALL_EARLY("cuInit", false);
  if (flags != 0) return number(misuse(entry.name(), Code::Invalid, "flags %u", flags));
  if (settings().devices == 0) return kNoDevice;
  static std::once_flag once;  // a second cuInit finds the devices there
  std::call_once(once, [] { limit_queues("CUDA_DEVICE_MAX_CONNECTIONS"); });
  Machine::get().illegal_address.store(kIllegalAddress);
  if (switched_on("CUDA_LAUNCH_BLOCKING")) Machine::get().blocking.store(true);
  announce_simulation("NVIDIA driver");
  return kSuccess;
}

EXPORT Result cuDriverGetVersion(int *version) {
  CUDA_CALL_EARLY("cuDriverGetVersion", false);
  if (!version) return kInvalidValue;
  *version = kDriverVersion;
  return kSuccess;
}

EXPORT Result cuDeviceGetCount(int *count) {
  CUDA_CALL("cuDeviceGetCount");
  if (!count) return kInvalidValue;
  *count = Machine::get().devices();
  return kSuccess;
}

EXPORT Result cuDeviceGet(DeviceNumber *out, int ordinal) {
  CUDA_CALL("cuDeviceGet");
  if (!out) return kInvalidValue;
  if (!Machine::get().device(ordinal)) return kInvalidDevice;
  *out = ordinal;
  return kSuccess;
}

EXPORT Result cuDeviceGetAttribute(int *value, int attribute, DeviceNumber n) {
  CUDA_CALL("cuDeviceGetAttribute");
  const Device *d = numbered(entry, n);
  if (!d) return kInvalidDevice;
  if (!value) return kInvalidValue;
  switch (attribute) {
    case 15: *value = 1; break;                        // copies beside kernels
    case 16: *value = 1; break;                        // multiprocessors
    case 18: *value = 0; break;                        // integrated
    case 19: *value = 1; break;                        // maps host memory
    case 31: *value = hardware_queues() > 1; break;    // concurrent kernels
    case 33: *value = pci_bus(n); break;               // PCI bus
    case 34: *value = 0; break;                        // PCI device
    case 40: *value = 2; break;                        // copy engines
    case 41: *value = 1; break;                        // unified addressing
    case 50: *value = pci_domain(); break;             // PCI domain
    case 75: *value = 9; break;                        // compute capability, major
    case 76: *value = 0; break;                        // and minor
    case 83: *value = 0; break;                        // managed memory
    case 91: *value = settings().same_address; break;  // a registered host pointer is its own device address
    case 92:
    case 93:
    case 94: *value = 0; break;  // value operations, first version: not by default
    case 98: *value = 0; break;  // flush of remote writes
    case 99: *value = 1; break;  // registers host memory
    case 122:
    case 123: *value = stream_values(); break;  // value operations of 64 bits; NOR
    case 130: *value = 0; break;                // the device is no NUMA node
    case 131: *value = -1; break;
    case 134: *value = 0; break;  // NUMA node of the host closest to it
    default: *value = 0; break;
  }
  return kSuccess;
}

EXPORT Result cuDeviceGetName(char *name, int length, DeviceNumber n) {
  CUDA_CALL("cuDeviceGetName");
  if (!numbered(entry, n)) return kInvalidDevice;
  if (!name || length < 1) return kInvalidValue;
  std::snprintf(name, static_cast<size_t>(length), "%s", kDeviceName);
  return kSuccess;
}

EXPORT Result cuDeviceGetUuid_v2(unsigned char *uuid, DeviceNumber n) {
  CUDA_CALL("cuDeviceGetUuid_v2");
  if (!numbered(entry, n)) return kInvalidDevice;
  if (!uuid) return kInvalidValue;
  device_uuid(n, uuid);
  return kSuccess;
}

EXPORT Result cuDeviceGetPCIBusId(char *text, int length, DeviceNumber n) {
  CUDA_CALL("cuDeviceGetPCIBusId");
  if (!numbered(entry, n)) return kInvalidDevice;
  if (!text || length < 13) return kInvalidValue;
  std::snprintf(text, static_cast<size_t>(length), "%04X:%02X:00.0", pci_domain(), pci_bus(n));
  return kSuccess;
}

EXPORT Result cuDeviceTotalMem_v2(size_t *bytes, DeviceNumber n) {
  CUDA_CALL("cuDeviceTotalMem_v2");
  if (!numbered(entry, n)) return kInvalidDevice;
  if (!bytes) return kInvalidValue;
  *bytes = settings().memory;
  return kSuccess;
}

// ---- contexts: there are only the devices' primary contexts ---------------------------------------------------------------

EXPORT Result cuDevicePrimaryCtxRetain(Context *out, DeviceNumber n) {
  CUDA_CALL("cuDevicePrimaryCtxRetain");
  Device *d = numbered(entry, n);
  if (!d) return kInvalidDevice;
  if (!out) return kInvalidValue;
  const Lock lock(d->context_mutex);
  ++d->retained;
  d->ended.store(false, std::memory_order_release);  // the context begins anew, with the same handle
  *out = context_of(d);
  return kSuccess;
}

EXPORT Result cuDevicePrimaryCtxRelease_v2(DeviceNumber n) {
  CUDA_CALL("cuDevicePrimaryCtxRelease_v2");
  Device *d = numbered(entry, n);
  if (!d) return kInvalidDevice;
  const Lock lock(d->context_mutex);
  if (d->retained == 0) return number(misuse(entry.name(), Code::NoContext, "released more often than retained"));
  --d->retained;
  return kSuccess;
}

EXPORT Result cuDevicePrimaryCtxGetState(DeviceNumber n, unsigned *flags, int *active) {
  CUDA_CALL("cuDevicePrimaryCtxGetState");
  Device *d = numbered(entry, n);
  if (!d) return kInvalidDevice;
  if (!flags || !active) return kInvalidValue;
  const Lock lock(d->context_mutex);
  *flags = 0;
  *active = d->retained > 0 && !d->ended.load();
  return kSuccess;
}

// A program that has retained the context still has to release it. The context stays current in the threads where it is current.
EXPORT Result cuDevicePrimaryCtxReset_v2(DeviceNumber n) {
  CUDA_CALL("cuDevicePrimaryCtxReset_v2");
  Device *d = numbered(entry, n);
  if (!d) return kInvalidDevice;
  {
    const Lock lock(d->context_mutex);
    if (d->retained == 0 || d->ended.exchange(true)) return kSuccess;  // there is no context
  }
  reset(*d, false);
  return kSuccess;
}
EXPORT Result cuDevicePrimaryCtxReset(DeviceNumber n) { return cuDevicePrimaryCtxReset_v2(n); }

namespace {
Result usable(const Entry &e, Context c, Device **out) {
  Device *const d = *out = device_of(c);
  if (!d) return number(misuse(e.name(), Code::NoContext, "%p is not a context", c));
  const Lock lock(d->context_mutex);
  if (d->retained == 0)
    return number(misuse(e.name(), Code::NoContext, "the context of device %d is not retained", d->ordinal()));
  return kSuccess;
}
}  // namespace

EXPORT Result cuCtxSetCurrent(Context c) {
  CUDA_CALL("cuCtxSetCurrent");
  auto &stack = device_stack();
  Device *d = nullptr;
  if (c)
    if (const Result r = usable(entry, c, &d)) return r;
  if (!stack.empty()) stack.pop_back();
  if (d) stack.push_back(d);
  return kSuccess;
}

EXPORT Result cuCtxGetCurrent(Context *out) {
  CUDA_CALL("cuCtxGetCurrent");
  if (!out) return kInvalidValue;
  *out = context_of(current_device());
  return kSuccess;
}

EXPORT Result cuCtxPushCurrent_v2(Context c) {
  CUDA_CALL("cuCtxPushCurrent_v2");
  Device *d = nullptr;
  if (const Result r = usable(entry, c, &d)) return r;
  device_stack().push_back(d);
  return kSuccess;
}

EXPORT Result cuCtxPopCurrent_v2(Context *out) {
  CUDA_CALL("cuCtxPopCurrent_v2");
  const Device *const device = current(entry);
  if (!device) return kInvalidContext;
  if (out) *out = context_of(device);
  device_stack().pop_back();
  return kSuccess;
}

EXPORT Result cuCtxGetDevice(DeviceNumber *out) {
  CUDA_CALL("cuCtxGetDevice");
  if (!out) return kInvalidValue;
  if (!current_device()) return kInvalidContext;  // no misuse: the program only asks
  *out = current_device()->ordinal();
  return kSuccess;
}

// The id of a context changes with every reset.
EXPORT Result cuCtxGetId(Context c, unsigned long long *out) {
  CUDA_CALL("cuCtxGetId");
  Device *d = c ? nullptr : current(entry);
  if (c)
    if (const Result r = usable(entry, c, &d)) return r;
  if (!d || !out) return d ? kInvalidValue : kInvalidContext;
  if (d->ended.load(std::memory_order_acquire)) return kContextDestroyed;
  *out = static_cast<unsigned long long>(d->resets.load()) << 16 | static_cast<unsigned long long>(d->ordinal() + 1);
  return kSuccess;
}

EXPORT Result cuCtxSynchronize() {
  CUDA_CALL("cuCtxSynchronize");
  CUDA_CURRENT();
  { const auto lock = device->enter(); }
  device->wait_idle();
  return device->broken();
}

// For cuda_stream.cpp and cuda_memory.cpp.
namespace rehearsal::cuda {
Context stream_context(const Stream &s) { return context_of(&s.device); }
Context numbered_context(int ordinal) { return context_of(Machine::get().device(ordinal)); }
}  // namespace rehearsal::cuda

// ---- texts of errors, entry points ----------------------------------------------------------------------------------------

namespace {
Result text_of(Result code, const char *CudaErrorText::*part, const char **out) {
  if (!out) return kInvalidValue;
  *out = nullptr;
  for (const CudaErrorText &t : kErrors)
    if (t.code == code) *out = t.*part;
  return *out ? kSuccess : kInvalidValue;
}
}  // namespace

EXPORT Result cuGetErrorName(Result code, const char **out) {
  CUDA_CALL_EARLY("cuGetErrorName", false);
  return text_of(code, &CudaErrorText::name, out);
}
EXPORT Result cuGetErrorString(Result code, const char **out) {
  CUDA_CALL_EARLY("cuGetErrorString", false);
  return text_of(code, &CudaErrorText::text, out);
}

EXPORT Result cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *status) {
  CUDA_CALL_EARLY("cuGetProcAddress_v2", false);
  (void)version;
  constexpr uint64_t kThreadDefault = 2;  // the flag: a null stream is the calling thread's default stream
  if (!symbol || !out) return kInvalidValue;
  *out = nullptr;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void *>(&cuInit), &info))
    if (void *self = ::dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)) {
      const auto look = [&](const char *suffix) {
        if (!*out) *out = ::dlsym(self, (std::string(symbol) + suffix).c_str());
      };
      if (flags & kThreadDefault)
        for (const char *suffix : {"_v2_ptsz", "_ptsz", "_v2_ptds", "_ptds"}) look(suffix);
      look("_v2");
      look("");
      ::dlclose(self);
    }
  if (status) *status = *out ? 0 : 1;
  return *out ? kSuccess : kNotFound;
}
EXPORT Result cuGetProcAddress(const char *symbol, void **out, int version, uint64_t flags) {
  return cuGetProcAddress_v2(symbol, out, version, flags, nullptr);
}
