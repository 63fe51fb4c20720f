// The simulated libascendcl.so: events. An event of aclrtCreateEventExWithFlag cannot be reset.
#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {
namespace {

constexpr uint32_t kKnownFlags = kSync | kProgress | kTimeline | kDeviceOnly | kExternal | kIpc;

Result create(const ContextPtr &c, EventHandle *out, uint32_t flags, bool plain) {
  if (!out) return kInvalidParameter;
  if (flags == 0 || (flags & ~kKnownFlags)) return kInvalidValue;
  if (flags & (kDeviceOnly | kExternal | kIpc)) return kNotSupported;
  const auto lock = c->device.enter();
  const auto event = std::make_shared<AclEvent>();
  event->device = c->device.ordinal();
  event->timing = (flags & kTimeline) != 0;
  event->flags = flags;
  event->plain = plain;
  *out = pointer(Machine::get().events.add(event));
  born(Live::Event);
  return kSuccess;
}

Result find(const Entry &e, EventHandle h, AclEventPtr *out) {
  if (!h) return kInvalidParameter;
  *out = std::static_pointer_cast<AclEvent>(Machine::get().events.find(word(h)));
  if (*out) return kSuccess;
  if (Machine::get().events.lost(word(h))) return kNoContext;
  return number(misuse(e.name(), Code::BadHandle, "event %p %s", h, Machine::get().events.why_not(word(h))));
}

// A call on an event. The event need not be of the thread's device.
template <Name name, class Body>
Result about(EventHandle h, Body body) {
  return call<name>([&](const Entry &e, const ContextPtr &) -> Result {
    AclEventPtr event;
    if (const Result r = find(e, h, &event)) return r;
    return body(e, event, *Machine::get().device(event->device));
  });
}

Result no_such_event(const Entry &e) {
  return number(misuse(e.name(), Code::BadHandle, "events of aclrtCreateEventExWithFlag do not have this"));
}

// Whether the event has been recorded. `done`: a stream has come to the last record.
bool recorded(AclEvent &event, bool *done) {
  const Lock mine(event.mutex);
  *done = event.marker && event.marker->done.load(std::memory_order_acquire);
  return event.marker != nullptr;
}

Result wait_on(const Entry &e, const AclStreamPtr &s, EventHandle h) {
  AclEventPtr event;
  if (const Result r = find(e, h, &event)) return r;
  if (!(event->flags & kSync))
    return number(misuse(e.name(), Code::BadHandle, "an event that was made without the flag for streams to wait"));
  event->waiting.fetch_add(1);
  Code code = wait_event(e, s, event);
  const auto lock = s->device.enter();
  const Extras none;
  if (code != Code::Ok || s->capture()) event->waiting.fetch_sub(1);
  else
    code = submit_locked(
        lock, e, s, [event] { event->waiting.fetch_sub(1); }, true, &none);
  return number(code, &s->device);
}

// `ms`: -1 waits for ever.
Result synchronize_for(const AclEventPtr &event, Device &d, int32_t ms) {
  bool done = false;
  if (ms < -1) return kInvalidValue;
  if (!recorded(*event, &done)) return d.broken();
  if (ms == -1) return number(synchronize(event), &d);
  const bool came = d.wait_for(std::chrono::milliseconds(ms), [&] { return (recorded(*event, &done), done) || d.broken(); });
  return came ? d.broken() : static_cast<Result>(kEventTimeout);
}

}  // namespace
}  // namespace rehearsal::acl

using namespace rehearsal;
using namespace rehearsal::acl;

EXPORT Result aclrtCreateEvent(EventHandle *out) {
  return call<"aclrtCreateEvent">(
      [&](const Entry &, const ContextPtr &c) { return create(c, out, kSync | kTimeline, false); });
}
EXPORT Result aclrtCreateEventWithFlag(EventHandle *out, uint32_t flags) {
  return call<"aclrtCreateEventWithFlag">([&](const Entry &, const ContextPtr &c) { return create(c, out, flags, false); });
}
EXPORT Result aclrtCreateEventExWithFlag(EventHandle *out, uint32_t flags) {
  return call<"aclrtCreateEventExWithFlag">([&](const Entry &, const ContextPtr &c) { return create(c, out, flags, true); });
}

EXPORT Result aclrtDestroyEvent(EventHandle h) {
  return about<"aclrtDestroyEvent">(h, [&](const Entry &e, const AclEventPtr &event, Device &d) -> Result {
    bool done = false;
    if (!event->plain && event->waiting.load() > 0 && !d.broken())
      return number(misuse(e.name(), Code::BadHandle, "a stream still waits for the event"));
    if (recorded(*event, &done) && !done && !d.broken())
      return number(misuse(e.name(), Code::BadHandle, "a stream has not come to its record of the event"));
    return number(destroy_event(e, h));
  });
}

EXPORT Result aclrtRecordEvent(EventHandle h, StreamHandle stream) {
  return call_on<"aclrtRecordEvent">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    AclEventPtr event;
    if (const Result r = find(e, h, &event)) return r;
    return number(record_here(e, event, s), &s->device);
  });
}

EXPORT Result aclrtStreamWaitEvent(StreamHandle stream, EventHandle h) {
  return call_on<"aclrtStreamWaitEvent">(stream, [&](const Entry &e, const AclStreamPtr &s) { return wait_on(e, s, h); });
}

EXPORT Result aclrtResetEvent(EventHandle h, StreamHandle stream) {
  return call_on<"aclrtResetEvent">(stream, [&](const Entry &e, const AclStreamPtr &) -> Result {
    AclEventPtr event;
    if (const Result r = find(e, h, &event)) return r;
    if (event->plain) return no_such_event(e);
    bool done = false;
    if (event->waiting.load() > 0 || (recorded(*event, &done) && !done))
      return number(misuse(e.name(), Code::BadHandle, "a stream has still to do with the event"));
    const Lock mine(event->mutex);
    event->marker = nullptr;
    return kSuccess;
  });
}

// An event has status 1 when its record is done; a stream has status 0 when its work is done. An event that was never recorded has status
// 0.
EXPORT Result aclrtQueryEventStatus(EventHandle h, int *status) {
  return about<"aclrtQueryEventStatus">(h, [&](const Entry &, const AclEventPtr &event, Device &d) -> Result {
    if (!status) return kInvalidParameter;
    bool done = false;
    const Code code = query(event);
    *status = code == Code::Ok && recorded(*event, &done) && done ? kEventRecorded : kEventNotRecorded;
    return code == Code::NotReady ? kSuccess : number(code, &d);
  });
}

EXPORT Result aclrtQueryEventWaitStatus(EventHandle h, int *status) {
  return about<"aclrtQueryEventWaitStatus">(h, [&](const Entry &e, const AclEventPtr &event, Device &d) -> Result {
    if (!status) return kInvalidParameter;
    if (event->plain) return no_such_event(e);
    *status = event->waiting.load() > 0 ? kWaitsNotReady : kWaitsComplete;
    return d.broken();
  });
}

EXPORT Result aclrtSynchronizeEvent(EventHandle h) {
  return about<"aclrtSynchronizeEvent">(
      h, [](const Entry &, const AclEventPtr &event, Device &d) { return synchronize_for(event, d, -1); });
}
EXPORT Result aclrtSynchronizeEventWithTimeout(EventHandle h, int32_t ms) {
  return about<"aclrtSynchronizeEventWithTimeout">(
      h, [&](const Entry &, const AclEventPtr &event, Device &d) { return synchronize_for(event, d, ms); });
}

EXPORT Result aclrtEventElapsedTime(float *ms, EventHandle first, EventHandle second) {
  return about<"aclrtEventElapsedTime">(first, [&](const Entry &e, const AclEventPtr &a, Device &d) -> Result {
    AclEventPtr b;
    if (const Result r = find(e, second, &b)) return r;
    const Code code = elapsed_ms(a, b, ms);
    return code == Code::BadHandle ? static_cast<Result>(kInvalidTimestamp) : number(code, &d);
  });
}
