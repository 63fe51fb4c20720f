// The simulated libascendcl.so: start, devices, errors.
#include <cstdio>

#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {
namespace {

constexpr const char *kChipName = "Simulated Ascend910B (Isthmus rehearsal)";

enum class Life { Before, Running, Over };
std::atomic<Life> life{Life::Before};

// The last error of a thread. aclGetRecentErrMsg() tells an error once.
struct LastError {
  Result code = kSuccess;
  char text[80] = {};
};
LastError &last_error() {
  static thread_local LastError error;
  return error;
}

Options read() {
  Options o;
  o.stream_values = switched_on("REHEARSAL_ACL_STREAM_VALUES");
  o.host_functions = !switched_on("REHEARSAL_ACL_NO_HOST_FUNC");
  return o;
}

// The answer to a question about device `n`; no such device is a misuse.
template <class Answer>
Result about(const Entry &e, int n, Answer answer) {
  if (!start()) return kNoDevice;
  if (Machine::get().device(n)) return answer();
  return number(misuse(e.name(), Code::NoDevice, "no device %d", n));
}

}  // namespace

const Options &options() {
  static const Options *const the_options = new Options(read());
  return *the_options;
}

bool initialized() { return life.load(std::memory_order_acquire) == Life::Running; }

bool start() {
  static const bool has_devices = [] {
    options();
    if (settings().devices == 0) return false;
    Machine::get().illegal_address.store(kMemoryFailed);
    if (switched_on("ASCEND_LAUNCH_BLOCKING")) Machine::get().blocking.store(true);
    announce_simulation("Ascend runtime (ACL)");
    return true;
  }();
  return has_devices;
}

Result remember(Result r) {
  if (r != kSuccess) last_error().code = r;
  return r;
}

Result number(Code code, const Device *d) {
  switch (code) {
    case Code::Ok: return kSuccess;
    case Code::Invalid: return kInvalidValue;
    case Code::NoMemory: return kOutOfMemory;
    case Code::NotReady: return kEventNotComplete;
    case Code::NoContext: return kNoContext;
    case Code::NoDevice: return kInvalidDevice;
    case Code::BadHandle: return kInvalidHandle;
    case Code::Registered: return kHostRegistered;
    case Code::NotRegistered: return kHostNotRegistered;
    case Code::Illegal: return kMemoryFailed;
    case Code::IllegalState: return kNotCapturing;  // only captures have this outcome
    case Code::CaptureUnsupported: return kCaptureUnsupported;
    case Code::CaptureInvalidated: return kCaptureInvalidated;
    case Code::CaptureUnmatched: return kCaptureUnmatched;
    case Code::CapturedEvent: return kEventCaptured;
    case Code::NotPermitted: return kNotPermitted;
    case Code::Broken: return d && d->broken() ? d->broken() : static_cast<Result>(kInternal);
    case Code::Lost: return kNoContext;
  }
  return kInternal;
}

}  // namespace rehearsal::acl

using namespace rehearsal;
using namespace rehearsal::acl;

EXPORT Result aclInit(const char *) {  // the file of settings has nothing for a simulated device
  return call<"aclInit">([&](const Entry &) -> Result {
    if (initialized()) return kAlreadyInitialized;
    if (!start()) return kNoDevice;
    life.store(Life::Running, std::memory_order_release);
    return kSuccess;
  });
}

EXPORT Result aclFinalize() {
  return call<"aclFinalize">([&](const Entry &) -> Result {
    if (!initialized()) return life.load() == Life::Over ? kAlreadyFinalized : kUninitialized;
    life.store(Life::Over, std::memory_order_release);
    return kSuccess;
  });
}

EXPORT Result aclrtGetVersion(int32_t *of_major, int32_t *of_minor, int32_t *of_patch) {
  return call<"aclrtGetVersion">([&](const Entry &) -> Result {
    if (!of_major || !of_minor || !of_patch) return kInvalidParameter;
    *of_major = kMajorVersion;
    *of_minor = kMinorVersion;
    *of_patch = kPatchVersion;
    return kSuccess;
  });
}

EXPORT const char *aclrtGetSocName() {
  static Counter &this_counter = counter("aclrtGetSocName");
  const Entry entry(this_counter);
  return start() ? kChipName : nullptr;
}

EXPORT const char *aclGetRecentErrMsg() {
  static Counter &this_counter = counter("aclGetRecentErrMsg");
  const Entry entry(this_counter);
  LastError &last = last_error();
  if (last.code == kSuccess) return nullptr;
  std::snprintf(last.text, sizeof last.text, "E%d: the last call of this thread that failed gave this code", last.code);
  last.code = kSuccess;
  return last.text;
}

// ---- devices --------------------------------------------------------------------------------------------------------------

EXPORT Result aclrtGetDeviceCount(uint32_t *count) {
  return call<"aclrtGetDeviceCount">([&](const Entry &) -> Result {
    if (!count) return kInvalidParameter;
    *count = static_cast<uint32_t>(settings().devices);
    return start() ? kSuccess : kNoDevice;
  });
}

EXPORT Result aclrtGetDeviceInfo(uint32_t device, int which, int64_t *value) {
  return call<"aclrtGetDeviceInfo">([&](const Entry &e) {
    return about(e, static_cast<int>(device), [&]() -> Result {
      if (!value) return kInvalidParameter;
      switch (which) {
        case kAicores:
        case kCubeCores: *value = 24; break;
        case kVectorCores: *value = 48; break;
        case kMemoryBytes: *value = static_cast<int64_t>(settings().memory); break;
        case kCacheBytes: *value = int64_t{192} << 20; break;
        case kSystem: *value = pci_domain(); break;
        case kChip: *value = device; break;
        case kVirtual: *value = 0; break;
        default: return kInvalidValue;
      }
      return kSuccess;
    });
  });
}

EXPORT Result aclrtDeviceGetUuid(int32_t device, Uuid *uuid) {
  return call<"aclrtDeviceGetUuid">([&](const Entry &e) {
    return about(e, device, [&]() -> Result {
      if (!uuid) return kInvalidParameter;
      device_uuid(device, reinterpret_cast<unsigned char *>(uuid->bytes));
      return kSuccess;
    });
  });
}

EXPORT Result aclrtGetMemInfo(int kind, size_t *left, size_t *all) {
  return call<"aclrtGetMemInfo">([&](const Entry &, const ContextPtr &c) -> Result {
    if (!left || !all) return kInvalidParameter;
    if (kind != kHbm && kind != kHbmHuge && kind != kHbmNormal) return kNotSupported;  // these devices have no other memory
    *all = settings().memory;
    *left = memory_left(c->device);
    return kSuccess;
  });
}

EXPORT Result aclrtSynchronizeDevice() {
  return call<"aclrtSynchronizeDevice">([&](const Entry &, const ContextPtr &c) -> Result {
    { const auto lock = c->device.enter(); }
    c->device.wait_idle();
    return c->device.broken();
  });
}
