// The simulated libamdhip64.so: memory, copies, what a pointer is.
#include "amd/hip_abi.hpp"

namespace rehearsal::hip {
namespace {

// What each end of a copy must be. `host`: an end in host memory, which must be registered for an asynchronous copy. `any`: an end of the
// default direction. False: no such direction.
struct HipCopyEnds {
  Side to, from;
};
bool ends_of(int direction, Side host, Side any, HipCopyEnds *out) {
  switch (direction) {
    case kHostToHost: *out = {host, host}; return true;
    case kHostToDevice: *out = {Side::Device, host}; return true;
    case kDeviceToHost: *out = {host, Side::Device}; return true;
    case kDeviceToDevice: *out = {Side::Device, Side::Device}; return true;
    case kDefaultDirection: *out = {any, any}; return true;
    default: return false;
  }
}
Result bad_direction(const Entry &e, int direction) {
  misuse(e.name(), Code::Invalid, "a copy of kind %d", direction);
  return kInvalidDirection;
}

Result allocate_signal(const Entry &e, Device &d, void **out, size_t bytes) {
  if (!options().signal_memory || bytes != 8) return kInvalidValue;
  return number(allocate_host(e, d, bytes, out, Pinned::Signal), &d);
}

Result allocate_memory(const Entry &e, Device &d, void **out, size_t bytes) {
  *out = nullptr;
  if (bytes == 0) return kSuccess;
  uintptr_t address = 0;
  const Code code = allocate(e, d, bytes, &address);
  if (code == Code::Ok) *out = pointer(address);
  return number(code, &d);
}

}  // namespace
}  // namespace rehearsal::hip

using namespace rehearsal;
using namespace rehearsal::hip;

// ---- allocation and registration ------------------------------------------------------------------------------------------

EXPORT Result hipMalloc(void **out, size_t bytes) {
  return call<"hipMalloc">([&](const Entry &e, Device &device) -> Result {
    if (!out) return kInvalidValue;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return allocate_memory(e, device, out, bytes);
  });
}

EXPORT Result hipExtMallocWithFlags(void **out, size_t bytes, unsigned flags) {
  return call<"hipExtMallocWithFlags">([&](const Entry &e, Device &device) -> Result {
    if (!out || flags > kSignalMemory) return kInvalidValue;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return flags == kSignalMemory ? allocate_signal(e, device, out, bytes) : allocate_memory(e, device, out, bytes);
  });
}

EXPORT Result hipFree(void *p) {
  return call<"hipFree">([&](const Entry &e, Device &device) -> Result {
    if (!p) return kSuccess;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    Device &owner = owner_of(word(p), device);  // memory of another device may be freed, too; the call waits for that device
    const Place place = find_place(word(p));
    if (place.found() && place.block->is(Pinned::Signal)) return number(release_host(e, owner, p, Pinned::Signal), &device);
    return number(release(e, owner, word(p)), &device);
  });
}

EXPORT Result hipMemGetInfo(size_t *left, size_t *all) {
  return call<"hipMemGetInfo">([&](const Entry &, Device &device) -> Result {
    if (!left || !all) return kInvalidValue;
    *all = settings().memory;
    *left = memory_left(device);
    return kSuccess;
  });
}

EXPORT Result hipHostMalloc(void **out, size_t bytes, unsigned flags) {
  return call<"hipHostMalloc">([&](const Entry &e, Device &device) -> Result {
    constexpr unsigned all = kPortable | kMapped | kWriteCombined | kNumaUser | kCoherent | kNonCoherent;
    if (!out || (flags & ~all) || ((flags & kCoherent) && (flags & kNonCoherent))) return kInvalidValue;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    *out = nullptr;
    return bytes ? number(allocate_host(e, device, bytes, out), &device) : kSuccess;
  });
}

EXPORT Result hipHostFree(void *host) {
  return call<"hipHostFree">([&](const Entry &e, Device &device) -> Result {
    if (!host) return kSuccess;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return number(release_host(e, owner_of(word(host), device), host), &device);
  });
}

EXPORT Result hipHostRegister(void *host, size_t bytes, unsigned flags) {
  return call<"hipHostRegister">([&](const Entry &e, Device &device) -> Result {
    if (flags & ~(kPortable | kMapped | kIoMemory | kCoarseGrained)) return kInvalidValue;
    if (flags & kIoMemory) return kNotSupported;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return number(enter_host(e, device, host, bytes), &device);
  });
}

EXPORT Result hipHostUnregister(void *host) {
  return call<"hipHostUnregister">([&](const Entry &e, Device &device) -> Result {
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return number(leave_host(e, owner_of(word(host), device), host), &device);
  });
}

EXPORT Result hipHostGetDevicePointer(void **out, void *host, unsigned flags) {
  return call<"hipHostGetDevicePointer">([&](const Entry &, Device &device) -> Result {
    if (!out || flags) return kInvalidValue;
    uintptr_t address = 0;
    const Code code = device_address(device, host, &address);
    if (code == Code::Ok) *out = pointer(address);
    return number(code);
  });
}

// ---- copies ---------------------------------------------------------------------------------------------------------------

EXPORT Result hipMemcpy(void *to, const void *from, size_t bytes, int direction) {
  return call<"hipMemcpy">([&](const Entry &e, Device &device) -> Result {
    HipCopyEnds ends{};
    if (!ends_of(direction, Side::Pageable, Side::Any, &ends)) return bad_direction(e, direction);
    return number(copy_now(e, default_stream(device), word(to), ends.to, word(from), ends.from, bytes), &device);
  });
}

EXPORT Result hipMemcpyAsync(void *to, const void *from, size_t bytes, int direction, StreamHandle stream) {
  return call<"hipMemcpyAsync">([&](const Entry &e, Device &device) -> Result {
    HipCopyEnds ends{};
    if (!ends_of(direction, Side::Host, Side::Known, &ends)) return bad_direction(e, direction);
    StreamPtr s;
    if (const Code c = find_stream(e, device, stream, &s); c != Code::Ok) return number(c);
    return number(copy(e, s, word(to), ends.to, word(from), ends.from, bytes), &s->device);
  });
}

// hipMemset of device memory returns before the fill is done.
EXPORT Result hipMemset(void *to, int value, size_t bytes) {
  return call<"hipMemset">([&](const Entry &e, Device &device) -> Result {
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return number(fill(e, default_stream(device), word(to), static_cast<unsigned char>(value), bytes), &device);
  });
}
EXPORT Result hipMemsetAsync(void *to, int value, size_t bytes, StreamHandle stream) {
  return call<"hipMemsetAsync">([&](const Entry &e, Device &device) -> Result {
    StreamPtr s;
    if (const Code c = find_stream(e, device, stream, &s); c != Code::Ok) return number(c);
    return number(fill(e, s, word(to), static_cast<unsigned char>(value), bytes), &s->device);
  });
}

// ---- questions ------------------------------------------------------------------------------------------------------------

EXPORT Result hipPointerGetAttributes(PointerAttributes *out, const void *p) {
  return call<"hipPointerGetAttributes">([&](const Entry &, Device &) -> Result {
    if (!out || !p) return kInvalidValue;
    const Place place = find_place(word(p));
    if (!place.found()) {
      if (HIP_MAJOR == 5) return kInvalidValue;
      *out = {kUnregistered, -2, nullptr, nullptr, 0, 0};
      return kSuccess;
    }
    const Block &b = *place.block;
    void *there = pointer(b.address + place.offset);
    if (b.on_host()) *out = {kHost, b.device, there, pointer(b.host + place.offset), 0, 0};
    else *out = {kDevice, b.device, there, nullptr, 0, 0};
    return kSuccess;
  });
}
