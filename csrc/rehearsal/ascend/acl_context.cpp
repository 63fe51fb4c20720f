// The simulated libascendcl.so: the device of a thread, contexts, access to another device's memory.
#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {
namespace {

struct ContextBooks {
  Handles<Context> contexts{5};
  Mutex mutex;
  std::map<int, ContextPtr> of_devices ISTHMUS_GUARDED_BY(mutex);  // a device's own context
  std::map<int, int> users ISTHMUS_GUARDED_BY(mutex);  // calls of aclrtSetDevice() less calls of aclrtResetDevice()
  std::set<std::pair<int, int>> peers ISTHMUS_GUARDED_BY(mutex);  // (device, the one whose memory it may touch)
};
ContextBooks &books() {
  static ContextBooks *const the_books = new ContextBooks;
  return *the_books;
}

// The context of the calling thread. Another thread may have destroyed the context.
std::weak_ptr<Context> &mine() {
  static thread_local std::weak_ptr<Context> context;
  return context;
}

void make_current(const ContextPtr &c) {
  mine() = c;
  if (c) device_stack().assign(1, &c->device);  // the collective library looks there
  else device_stack().clear();
}

// Destroys a context that the program made, when the work of the context's streams is done.
Result take_away(const Entry &e, const ContextPtr &c) {
  const Result r = drop_streams(e, *c);
  if (r) return r;
  c->live.store(false);
  if (books().contexts.remove(word(c->handle)) && mine().lock() == c) make_current(nullptr);
  return kSuccess;
}

// Destroys a device's own context. All that the program has on the device goes, of all contexts, when the work is done.
Result take_device_away(const Entry &e, Device &d, const ContextPtr &own) {
  for (const auto &s : Machine::get().streams.all([&](const Stream &one) { return &one.device == &d; }))
    if (s->capture()) return number(misuse(e.name(), Code::CaptureUnsupported, "a stream of it is being captured"));
  synchronize(own->default_stream);
  reset(d, true);
  books().contexts.lose([&](Context &c) {
    if (&c.device == &d) c.live.store(false);
    return &c.device == &d;
  });
  if (const ContextPtr c = mine().lock(); c && !c->live.load()) make_current(nullptr);
  return kSuccess;
}

Result find_context(const Entry &e, ContextHandle h, ContextPtr *out) {
  *out = books().contexts.find(word(h));
  if (*out) return kSuccess;
  if (books().contexts.lost(word(h))) return kNoContext;
  return number(misuse(e.name(), Code::BadHandle, "context %p %s", h, books().contexts.why_not(word(h))));
}

}  // namespace

ContextPtr make_context(Device &d) {
  const auto c = std::make_shared<Context>(d);
  c->default_stream = std::make_shared<AclStream>(c, d.next_queue(), 0u, 0, false);
  c->handle = pointer(books().contexts.add(c));
  return c;
}

ContextPtr current_context() {
  const ContextPtr c = mine().lock();
  return c && c->live.load() ? c : nullptr;
}

bool may_touch(int device, int other) {
  ContextBooks &b = books();
  const Lock lock(b.mutex);
  return device == other || b.peers.count({device, other}) != 0;
}

}  // namespace rehearsal::acl

using namespace rehearsal;
using namespace rehearsal::acl;

EXPORT Result aclrtSetDevice(int32_t n) {
  return call<"aclrtSetDevice">([&](const Entry &) -> Result {
    if (!initialized()) return kUninitialized;
    Device *d = Machine::get().device(n);
    if (!d) return kInvalidDevice;
    ContextBooks &b = books();
    const Lock lock(b.mutex);
    ContextPtr &c = b.of_devices[n];
    if (!c) {
      c = make_context(*d);
      c->of_device = true;
    }
    ++b.users[n];
    make_current(c);
    return kSuccess;
  });
}

// Undoes one call of aclrtSetDevice(). The reset that undoes the last one takes all that the program has on the device.
EXPORT Result aclrtResetDevice(int32_t n) {
  return call<"aclrtResetDevice">([&](const Entry &e) -> Result {
    if (!initialized()) return kUninitialized;
    if (!Machine::get().device(n)) return kInvalidDevice;
    ContextPtr c;
    {
      ContextBooks &b = books();
      const Lock lock(b.mutex);
      int &users = b.users[n];
      if (users == 0) return number(misuse(e.name(), Code::NoDevice, "nobody has set device %d", n));
      if (--users) return kSuccess;
      c.swap(b.of_devices[n]);
    }
    return take_device_away(e, *Machine::get().device(n), c);
  });
}

// Takes all that the program has on the device, however often aclrtSetDevice() was called.
EXPORT Result aclrtResetDeviceForce(int32_t n) {
  return call<"aclrtResetDeviceForce">([&](const Entry &e) -> Result {
    if (!initialized()) return kUninitialized;
    if (!Machine::get().device(n)) return kInvalidDevice;
    ContextPtr c;
    {
      ContextBooks &b = books();
      const Lock lock(b.mutex);
      b.users[n] = 0;
      c.swap(b.of_devices[n]);
    }
    if (!c) return number(misuse(e.name(), Code::NoDevice, "nobody has set device %d", n));
    return take_device_away(e, *Machine::get().device(n), c);
  });
}

EXPORT Result aclrtGetDevice(int32_t *out) {
  return call<"aclrtGetDevice">([&](const Entry &, const ContextPtr &c) -> Result {
    if (!out) return kInvalidParameter;
    *out = c->device.ordinal();
    return kSuccess;
  });
}

EXPORT Result aclrtCreateContext(ContextHandle *out, int32_t n) {
  return call<"aclrtCreateContext">([&](const Entry &) -> Result {
    if (!initialized()) return kUninitialized;
    if (!out) return kInvalidParameter;
    Device *d = Machine::get().device(n);
    if (!d) return kInvalidDevice;
    const ContextPtr c = make_context(*d);
    make_current(c);
    *out = c->handle;
    return kSuccess;
  });
}

EXPORT Result aclrtDestroyContext(ContextHandle h) {
  return call<"aclrtDestroyContext">([&](const Entry &e) -> Result {
    if (!initialized()) return kUninitialized;
    if (!h) return kInvalidParameter;
    ContextPtr c;
    if (const Result r = find_context(e, h, &c)) return r;
    if (c->of_device) return number(misuse(e.name(), Code::BadHandle, "the context of a device: aclrtResetDevice ends it"));
    return take_away(e, c);
  });
}

EXPORT Result aclrtSetCurrentContext(ContextHandle h) {
  return call<"aclrtSetCurrentContext">([&](const Entry &e) -> Result {
    if (!initialized()) return kUninitialized;
    if (!h) return kInvalidParameter;  // a thread that has a context cannot give it up
    ContextPtr c;
    if (const Result r = find_context(e, h, &c)) return r;
    make_current(c);
    return kSuccess;
  });
}

EXPORT Result aclrtGetCurrentContext(ContextHandle *out) {
  return call<"aclrtGetCurrentContext">([&](const Entry &, const ContextPtr &c) -> Result {
    if (!out) return kInvalidParameter;
    *out = c->handle;
    return kSuccess;
  });
}

// ---- one device and the memory of another ---------------------------------------------------------------------------------

EXPORT Result aclrtDeviceCanAccessPeer(int32_t *out, int32_t n, int32_t other) {
  return call<"aclrtDeviceCanAccessPeer">([&](const Entry &) -> Result {
    if (!initialized()) return kUninitialized;
    if (!out) return kInvalidParameter;
    if (!Machine::get().device(n) || !Machine::get().device(other)) return kInvalidDevice;
    *out = n != other;
    return kSuccess;
  });
}

EXPORT Result aclrtDeviceEnablePeerAccess(int32_t other, uint32_t flags) {
  return call<"aclrtDeviceEnablePeerAccess">([&](const Entry &, const ContextPtr &c) -> Result {
    if (flags || other == c->device.ordinal()) return kInvalidValue;
    if (!Machine::get().device(other)) return kInvalidDevice;
    ContextBooks &b = books();
    const Lock lock(b.mutex);
    b.peers.insert({c->device.ordinal(), other});
    return kSuccess;
  });
}

EXPORT Result aclrtDeviceDisablePeerAccess(int32_t other) {
  return call<"aclrtDeviceDisablePeerAccess">([&](const Entry &, const ContextPtr &c) -> Result {
    ContextBooks &b = books();
    const Lock lock(b.mutex);
    return b.peers.erase({c->device.ordinal(), other}) ? kSuccess : kInvalidValue;
  });
}
