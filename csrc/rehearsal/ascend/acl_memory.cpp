// The simulated libascendcl.so: memory, copies, what a pointer is.
#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {
namespace {

constexpr uintptr_t kPage = 4096;

// What each end of a copy must be. `host`: an end in host memory, which must be registered for an asynchronous copy. `any`: an end of the
// default direction. False: no such direction.
struct AclCopyEnds {
  Side to, from;
};
bool ends_of(int direction, Side host, Side any, AclCopyEnds *out) {
  switch (direction) {
    case kHostToHost: *out = {host, host}; return true;
    case kHostToDevice: *out = {Side::Device, host}; return true;
    case kDeviceToHost: *out = {host, Side::Device}; return true;
    case kDeviceToDevice: *out = {Side::Device, Side::Device}; return true;
    case kDefaultDirection: *out = {any, any}; return true;
    default: return false;
  }
}

// Checks a copy's arguments, without a look at what the addresses mean.
Result check_copy(const Entry &e, const void *to, size_t room, const void *from, size_t bytes, int direction) {
  if (!to || !from) return kInvalidParameter;
  if (direction < kHostToHost || direction > kDefaultDirection)
    return number(misuse(e.name(), Code::Invalid, "a copy of kind %d", direction));
  if (bytes > room) return number(misuse(e.name(), Code::Invalid, "%zu bytes to where there is room for %zu", bytes, room));
  return bytes ? kSuccess : kInvalidValue;
}

// A device may touch another device's memory only after aclrtDeviceEnablePeerAccess.
Result check_device(const Entry &e, const Device &d, std::initializer_list<const void *> ends) {
  for (const void *p : ends) {
    const Place place = find_place(word(p));
    if (!place.found() || place.block->on_host() || may_touch(d.ordinal(), place.block->device)) continue;
    return number(misuse(e.name(), Code::Invalid, "%p is memory of device %d, and device %d may not touch it", p,
                         place.block->device, d.ordinal()));
  }
  return kSuccess;
}

Result check_fill(const Entry &e, const Device &d, const void *to, size_t room, size_t bytes) {
  if (!to) return kInvalidParameter;
  if (bytes > room) return number(misuse(e.name(), Code::Invalid, "%zu bytes to where there is room for %zu", bytes, room));
  return bytes ? check_device(e, d, {to}) : static_cast<Result>(kInvalidValue);
}

// The flags with which host memory was registered, by the memory's address.
using Registrations = Guarded<std::map<uintptr_t, uint32_t>>;
Registrations &registrations() {
  static Registrations *const the_registrations = new Registrations;
  return *the_registrations;
}

Result register_memory(const Entry &e, const ContextPtr &c, void *host, uint64_t bytes, uint32_t flags) {
  if (!host || !bytes) return kInvalidParameter;
  if (flags & (kIoMemory | kReadOnly)) return kNotSupported;
  if (flags == 0 || (flags & ~(kMapped | kPinned))) return kInvalidValue;
  if (forbidden_by_capture()) return kCaptureUnsupported;
  if (word(host) % kPage)
    return number(misuse(e.name(), Code::Invalid, "%p does not begin at a page of %zu bytes", host, size_t{kPage}));
  if (const Code code = enter_host(e, c->device, host, bytes); code != Code::Ok) return number(code, &c->device);
  (*registrations().lock())[word(host)] = flags;
  return kSuccess;
}

// The device's address of host memory. Only memory that was registered with kMapped has one, and not aclrtMallocHost's.
Result device_pointer(const ContextPtr &c, void *host, void **out) {
  const Place place = find_place(word(host));
  if (!place.found() || !place.by_host_pointer || !place.block->is(Pinned::Registered)) return kHostNotRegistered;
  {
    const auto all = registrations().lock();
    const auto it = all->find(place.block->host);
    if (it == all->end() || !(it->second & kMapped)) return kHostNotRegistered;
  }
  uintptr_t address = 0;
  const Code code = device_address(c->device, host, &address);
  if (code == Code::Ok) *out = pointer(address);
  return number(code);
}

}  // namespace
}  // namespace rehearsal::acl

using namespace rehearsal;
using namespace rehearsal::acl;

// ---- allocation and registration ------------------------------------------------------------------------------------------

EXPORT Result aclrtMalloc(void **out, size_t bytes, int policy) {
  return call<"aclrtMalloc">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (!out || !bytes || policy < 0 || policy > kLastMallocPolicy) return kInvalidParameter;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    uintptr_t address = 0;
    const Code code = allocate(e, c->device, bytes, &address);
    if (code == Code::Ok) *out = pointer(address);
    return number(code, &c->device);
  });
}

EXPORT Result aclrtFree(void *p) {
  return call<"aclrtFree">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (!p) return kInvalidParameter;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    Device &owner = owner_of(word(p), c->device);
    if (&owner != &c->device)
      return number(misuse(e.name(), Code::Invalid, "%p is memory of device %d, and device %d is current", p,
                           owner.ordinal(), c->device.ordinal()));
    return number(release(e, owner, word(p)), &c->device);
  });
}

EXPORT Result aclrtMallocHost(void **out, size_t bytes) {
  return call<"aclrtMallocHost">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (!out || !bytes) return kInvalidParameter;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return number(allocate_host(e, c->device, bytes, out), &c->device);
  });
}

EXPORT Result aclrtFreeHost(void *host) {
  return call<"aclrtFreeHost">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (!host) return kInvalidParameter;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    return number(release_host(e, owner_of(word(host), c->device), host), &c->device);
  });
}

EXPORT Result aclrtHostRegister(void *host, uint64_t bytes, int type, void **out) {
  return call<"aclrtHostRegister">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (!out) return kInvalidParameter;
    if (type == kRegisterIo || type == kRegisterReadOnly) return kNotSupported;
    if (type != kRegisterMapped) return kInvalidValue;
    const Result r = register_memory(e, c, host, bytes, kMapped);
    return r ? r : device_pointer(c, host, out);
  });
}

EXPORT Result aclrtHostRegisterV2(void *host, uint64_t bytes, uint32_t flags) {
  return call<"aclrtHostRegisterV2">(
      [&](const Entry &e, const ContextPtr &c) { return register_memory(e, c, host, bytes, flags); });
}

EXPORT Result aclrtHostUnregister(void *host) {
  return call<"aclrtHostUnregister">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (!host) return kInvalidParameter;
    if (forbidden_by_capture()) return kCaptureUnsupported;
    const Code code = leave_host(e, owner_of(word(host), c->device), host);
    if (code == Code::Ok) registrations().lock()->erase(word(host));
    return number(code, &c->device);
  });
}

EXPORT Result aclrtHostGetDevicePointer(void *host, void **out, uint32_t flags) {
  return call<"aclrtHostGetDevicePointer">([&](const Entry &, const ContextPtr &c) -> Result {
    if (!host || !out) return kInvalidParameter;
    return flags ? static_cast<Result>(kInvalidValue) : device_pointer(c, host, out);
  });
}

// ---- copies ---------------------------------------------------------------------------------------------------------------

EXPORT Result aclrtMemcpy(void *to, size_t room, const void *from, size_t bytes, int direction) {
  return call<"aclrtMemcpy">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (const Result r = check_copy(e, to, room, from, bytes, direction)) return r;
    if (const Result r = check_device(e, c->device, {to, from})) return r;
    AclCopyEnds ends{};
    ends_of(direction, Side::Pageable, Side::Any, &ends);
    return number(copy_now(e, c->device.null_stream(), word(to), ends.to, word(from), ends.from, bytes), &c->device);
  });
}

EXPORT Result aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t bytes, int direction, StreamHandle stream) {
  return call_on<"aclrtMemcpyAsync">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (const Result r = check_copy(e, to, room, from, bytes, direction)) return r;
    if (const Result r = check_device(e, s->device, {to, from})) return r;
    AclCopyEnds ends{};
    ends_of(direction, Side::Host, Side::Known, &ends);
    return number(copy(e, s, word(to), ends.to, word(from), ends.from, bytes), &s->device);
  });
}

EXPORT Result aclrtMemset(void *to, size_t room, int32_t value, size_t bytes) {
  return call<"aclrtMemset">([&](const Entry &e, const ContextPtr &c) -> Result {
    if (forbidden_by_capture()) return kCaptureUnsupported;
    if (const Result r = check_fill(e, c->device, to, room, bytes)) return r;
    const StreamPtr &s = c->device.null_stream();
    const Code code = fill(e, s, word(to), static_cast<unsigned char>(value), bytes);
    return number(code == Code::Ok ? synchronize(s) : code, &c->device);
  });
}

EXPORT Result aclrtMemsetAsync(void *to, size_t room, int32_t value, size_t bytes, StreamHandle stream) {
  return call_on<"aclrtMemsetAsync">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (const Result r = check_fill(e, s->device, to, room, bytes)) return r;
    return number(fill(e, s, word(to), static_cast<unsigned char>(value), bytes), &s->device);
  });
}

// ---- questions ------------------------------------------------------------------------------------------------------------

EXPORT Result aclrtPointerGetAttributes(const void *p, PointerAttributes *out) {
  return call<"aclrtPointerGetAttributes">([&](const Entry &, const ContextPtr &) -> Result {
    if (!out || !p) return kInvalidParameter;
    const Place place = find_place(word(p));
    *out = {0, kUnregistered, 0, {}};
    if (!place.found()) return kSuccess;
    *out = {static_cast<uint32_t>(place.block->device), place.block->on_host() ? kOnHost : kOnDevice, kPage, {}};
    return kSuccess;
  });
}
