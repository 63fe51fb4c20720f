// The simulated libcuda.so.1: memory, copies, what a pointer is.
#include <cstring>

#include "nvidia/cuda_abi.hpp"

namespace rehearsal::cuda {
Context numbered_context(int ordinal);

namespace {

// A copy that is done when copied() returns.
Result copied(const Entry &e, Device &d, uintptr_t to, Side to_side, uintptr_t from, Side from_side, size_t bytes) {
  return number(copy_now(e, default_stream(d), to, to_side, from, from_side, bytes), &d);
}

// A copy of an "asynchronous" call. If both ends are memory of the host, the driver returns when the copy is done.
Result copy_later(const Entry &e, Device &d, StreamHandle h, uintptr_t to, Side to_side, uintptr_t from, Side from_side,
                  size_t bytes) {
  StreamPtr s;
  if (const Result r = find_here(e, d, h, &s)) return r;
  const Code code = copy(e, s, to, to_side, from, from_side, bytes);
  if (code == Code::Ok && !s->capture() && between_hosts(to, from)) return number(synchronize(s), &d);
  return number(code, &d);
}

// A copy of at most kTaken bytes of unregistered host memory, as the driver makes it:
//
//   1. The call waits for the default stream.
//   2. The call reads the bytes, and returns.
//   3. The device's memory has the bytes some time later.
constexpr size_t kTaken = 64 << 10;
Result taken(const Entry &e, Device &d, uintptr_t to, const void *from, size_t bytes) {
  const StreamPtr s = default_stream(d);
  if (const Code code = synchronize(s); code != Code::Ok) return number(code, &d);
  return number(copy_taken(e, s, to, from, bytes), &d);
}

template <class T>
Result put(void *out, T value) {
  std::memcpy(out, &value, sizeof value);
  return kSuccess;
}

Result attribute_of(const Place &p, uintptr_t asked, int attribute, void *out) {
  const Block &b = *p.block;
  switch (attribute) {
    case 1: return put(out, numbered_context(b.device));
    case 2: return put(out, b.on_host() ? 1u : 2u);
    case 3: return put<Address>(out, b.address + p.offset);
    case 4: return b.on_host() ? put<uintptr_t>(out, b.host + p.offset) : static_cast<Result>(kInvalidValue);
    case 8: return put<unsigned>(out, 0);  // managed
    case 9: return put<int>(out, b.device);
    case 11: return put<Address>(out, asked - p.offset);
    case 12: return put<size_t>(out, b.bytes);
    case 13: return put<unsigned>(out, 1);
    default: return kInvalidValue;
  }
}

void default_of(int attribute, void *out) {
  switch (attribute) {
    case 2: put(out, 0u); break;
    case 8:
    case 13: put(out, 0u); break;
    case 9: put(out, -2); break;
    default: put<uint64_t>(out, 0); break;
  }
}

}  // namespace
}  // namespace rehearsal::cuda

using namespace rehearsal;
using namespace rehearsal::cuda;

// ---- allocation and registration ------------------------------------------------------------------------------------------

EXPORT Result cuMemAlloc_v2(Address *out, size_t bytes) {
  CUDA_CALL("cuMemAlloc_v2");
  CUDA_CURRENT();
  if (!out) return kInvalidValue;
  if (forbidden_by_capture()) return kCaptureUnsupported;
  uintptr_t address = 0;
  const Code code = allocate(entry, *device, bytes, &address);
  if (code == Code::Ok) *out = address;
  return number(code, device);
}

EXPORT Result cuMemFree_v2(Address address) {
  CUDA_CALL("cuMemFree_v2");
  CUDA_CURRENT();
  if (!address) return kSuccess;
  if (forbidden_by_capture()) return kCaptureUnsupported;
  Device &owner = owner_of(address, *device);  // memory of another device may be freed, too; the call waits for that device
  return number(release(entry, owner, address), device);
}

EXPORT Result cuMemGetInfo_v2(size_t *left, size_t *all) {
  CUDA_CALL("cuMemGetInfo_v2");
  CUDA_CURRENT();
  if (!left || !all) return kInvalidValue;
  *all = settings().memory;
  *left = memory_left(*device);
  return kSuccess;
}

EXPORT Result cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  CUDA_CALL("cuMemHostAlloc");
  CUDA_CURRENT();
  if (!out || (flags & ~7u)) return kInvalidValue;
  if (forbidden_by_capture()) return kCaptureUnsupported;
  return number(allocate_host(entry, *device, bytes, out), device);
}

EXPORT Result cuMemFreeHost(void *host) {
  CUDA_CALL("cuMemFreeHost");
  CUDA_CURRENT();
  if (!host) return kSuccess;
  if (forbidden_by_capture()) return kCaptureUnsupported;
  return number(release_host(entry, *device, host), device);
}

EXPORT Result cuMemHostRegister_v2(void *host, size_t bytes, unsigned flags) {
  CUDA_CALL("cuMemHostRegister_v2");
  CUDA_CURRENT();
  if (flags & ~15u) return kInvalidValue;
  if (flags & 12u) return kNotSupported;  // memory of other devices, read-only memory
  if (forbidden_by_capture()) return kCaptureUnsupported;
  return number(enter_host(entry, *device, host, bytes), device);
}

EXPORT Result cuMemHostUnregister(void *host) {
  CUDA_CALL("cuMemHostUnregister");
  CUDA_CURRENT();
  if (forbidden_by_capture()) return kCaptureUnsupported;
  return number(leave_host(entry, *device, host), device);
}

EXPORT Result cuMemHostGetDevicePointer_v2(Address *out, void *host, unsigned flags) {
  CUDA_CALL("cuMemHostGetDevicePointer_v2");
  CUDA_CURRENT();
  if (!out || flags) return kInvalidValue;
  uintptr_t address = 0;
  const Code code = device_address(*device, host, &address);
  if (code == Code::Ok) *out = address;
  return number(code);
}

// ---- copies ---------------------------------------------------------------------------------------------------------------

EXPORT Result cuMemcpy(Address to, Address from, size_t bytes) {
  CUDA_CALL("cuMemcpy");
  CUDA_CURRENT();
  return copied(entry, *device, to, Side::Any, from, Side::Any, bytes);
}
EXPORT Result cuMemcpyHtoD_v2(Address to, const void *from, size_t bytes) {
  CUDA_CALL("cuMemcpyHtoD_v2");
  CUDA_CURRENT();
  if (bytes <= kTaken && !forbidden_by_capture() && !find_place(word(from)).found())
    return taken(entry, *device, to, from, bytes);
  return copied(entry, *device, to, Side::Device, word(from), Side::Pageable, bytes);
}
EXPORT Result cuMemcpyDtoH_v2(void *to, Address from, size_t bytes) {
  CUDA_CALL("cuMemcpyDtoH_v2");
  CUDA_CURRENT();
  return copied(entry, *device, word(to), Side::Pageable, from, Side::Device, bytes);
}
EXPORT Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  CUDA_CALL("cuMemcpyDtoD_v2");
  CUDA_CURRENT();
  return copied(entry, *device, to, Side::Device, from, Side::Device, bytes);
}
EXPORT Result cuMemcpyAsync(Address to, Address from, size_t bytes, StreamHandle stream) {
  CUDA_CALL("cuMemcpyAsync");
  CUDA_CURRENT();
  return copy_later(entry, *device, stream, to, Side::Known, from, Side::Known, bytes);
}
EXPORT Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, StreamHandle stream) {
  CUDA_CALL("cuMemcpyHtoDAsync_v2");
  CUDA_CURRENT();
  return copy_later(entry, *device, stream, to, Side::Device, word(from), Side::Host, bytes);
}
EXPORT Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, StreamHandle stream) {
  CUDA_CALL("cuMemcpyDtoHAsync_v2");
  CUDA_CURRENT();
  return copy_later(entry, *device, stream, word(to), Side::Host, from, Side::Device, bytes);
}
EXPORT Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, StreamHandle stream) {
  CUDA_CALL("cuMemcpyDtoDAsync_v2");
  CUDA_CURRENT();
  return copy_later(entry, *device, stream, to, Side::Device, from, Side::Device, bytes);
}

// cuMemsetD8 of device memory returns before the fill is done.
EXPORT Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  CUDA_CALL("cuMemsetD8_v2");
  CUDA_CURRENT();
  if (forbidden_by_capture()) return kCaptureUnsupported;
  return number(fill(entry, default_stream(*device), to, value, count), device);
}
EXPORT Result cuMemsetD8Async(Address to, unsigned char value, size_t count, StreamHandle stream) {
  CUDA_CALL("cuMemsetD8Async");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find_here(entry, *device, stream, &s)) return r;
  return number(fill(entry, s, to, value, count), device);
}

// ---- questions ------------------------------------------------------------------------------------------------------------

EXPORT Result cuPointerGetAttribute(void *out, int attribute, Address address) {
  CUDA_CALL("cuPointerGetAttribute");
  if (!out) return kInvalidValue;
  const Place p = find_place(address);
  return p.found() ? attribute_of(p, address, attribute, out) : static_cast<Result>(kInvalidValue);
}

EXPORT Result cuPointerGetAttributes(unsigned count, const int *attributes, void **out, Address address) {
  CUDA_CALL("cuPointerGetAttributes");
  if (!count || !attributes || !out) return kInvalidValue;
  const Place p = find_place(address);
  for (unsigned i = 0; i < count; ++i)
    if (!p.found() || attribute_of(p, address, attributes[i], out[i]) != kSuccess) default_of(attributes[i], out[i]);
  return kSuccess;
}

EXPORT Result cuMemGetAddressRange_v2(Address *base, size_t *bytes, Address address) {
  CUDA_CALL("cuMemGetAddressRange_v2");
  const Place p = find_place(address);
  if (!p.found()) return kNotFound;
  if (base) *base = address - p.offset;
  if (bytes) *bytes = p.block->bytes;
  return kSuccess;
}
