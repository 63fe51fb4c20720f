// The simulated libascendcl.so: streams, capture, value operations, host functions.
//
// A stream belongs to a context, and takes work only from threads that have this context. A null handle means the context's default stream.
#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {
namespace {

Result create(const Entry &, const ContextPtr &c, StreamHandle *out, uint32_t priority, uint32_t flags) {
  if (!out) return kInvalidParameter;
  if (priority > 7 || flags >= 2 * kLastStreamFlag) return kInvalidValue;
  if (flags & ~(kFastLaunch | kFastSync)) return kNotSupported;
  static std::atomic<int32_t> ids{0};
  const auto lock = c->device.enter();
  const auto s = std::make_shared<AclStream>(c, c->device.next_queue(), flags, static_cast<int>(priority), true);
  s->id = ids.fetch_add(1) + 1;
  const uint64_t h = Machine::get().streams.add(s);
  born(Live::Stream);
  const Lock mine(c->mutex);
  c->streams.insert(h);
  *out = pointer(h);
  return kSuccess;
}

// Removes the handle. `waits`: the work that was submitted is done first; else the work is cancelled.
Result destroy(Context &c, uint64_t h, const StreamPtr &s, bool waits) {
  Result result = kSuccess;
  if (waits) {
    { const auto lock = s->device.enter(); }
    const uint64_t until = s->submitted.load(std::memory_order_relaxed);
    s->device.wait([&] { return s->done.load(std::memory_order_acquire) >= until || s->device.broken(); });
    result = s->device.broken();
  } else {
    s->cancel();
  }
  if (Machine::get().streams.remove(h)) died(Live::Stream);
  const Lock mine(c.mutex);
  c.streams.erase(h);
  return result;
}

Result destroy(const Entry &e, const ContextPtr &c, StreamHandle h, bool waits) {
  if (!h) return number(misuse(e.name(), Code::BadHandle, "the context's own stream"));
  AclStreamPtr s;
  if (const Result r = find_stream(e, c, h, &s)) return r;
  if (s->capture()) return number(misuse(e.name(), Code::CaptureUnsupported, "the stream is being captured"));
  {
    const Lock lock(s->report_mutex);
    if (s->reports) return number(misuse(e.name(), Code::BadHandle, "a thread still runs the callbacks of the stream"));
  }
  return destroy(*c, word(h), s, waits);
}

// `ms`: -1 waits for ever.
Result synchronize_for(const StreamPtr &s, int32_t ms) {
  if (ms < -1) return kInvalidValue;
  if (ms == -1) return number(synchronize(s), &s->device);
  if (const Code c = query(s); c != Code::NotReady) return number(c, &s->device);
  const uint64_t until = s->submitted.load(std::memory_order_relaxed);
  const bool came = s->device.wait_for(
      std::chrono::milliseconds(ms), [&] { return s->done.load(std::memory_order_acquire) >= until || s->device.broken(); });
  return came ? s->device.broken() : static_cast<Result>(kStreamTimeout);
}

constexpr Compare kComparisons[] = {Compare::GreaterEqual, Compare::Equal, Compare::And, Compare::Nor};
static_assert(kAtLeast == 0 && kEqual == 1 && kAnd == 2 && kNor == 3);

}  // namespace

Result find_stream(const Entry &e, const ContextPtr &c, StreamHandle h, AclStreamPtr *out) {
  if (!h) {
    *out = c->default_stream;
    return kSuccess;
  }
  *out = std::static_pointer_cast<AclStream>(Machine::get().streams.find(word(h)));
  if (!*out && Machine::get().streams.lost(word(h))) return kNoContext;
  if (!*out) return number(misuse(e.name(), Code::BadHandle, "stream %p %s", h, Machine::get().streams.why_not(word(h))));
  if ((*out)->context.lock() == c) return kSuccess;
  misuse(e.name(), Code::BadHandle, "stream %p is of another context than the thread's", h);
  return kOtherContext;
}

Result drop_streams(const Entry &e, Context &c) {
  std::set<uint64_t> handles;
  {
    const Lock mine(c.mutex);
    handles = c.streams;
  }
  for (const uint64_t h : handles) {
    const auto s = std::static_pointer_cast<AclStream>(Machine::get().streams.find(h));
    if (!s) continue;
    if (s->capture()) return number(misuse(e.name(), Code::CaptureUnsupported, "a stream of it is being captured"));
    destroy(c, h, s, true);
  }
  synchronize(c.default_stream);
  return kSuccess;
}

}  // namespace rehearsal::acl

using namespace rehearsal;
using namespace rehearsal::acl;

EXPORT Result aclrtCreateStream(StreamHandle *out) {
  return call<"aclrtCreateStream">([&](const Entry &e, const ContextPtr &c) { return create(e, c, out, 0, 0); });
}
EXPORT Result aclrtCreateStreamWithConfig(StreamHandle *out, uint32_t priority, uint32_t flags) {
  return call<"aclrtCreateStreamWithConfig">(
      [&](const Entry &e, const ContextPtr &c) { return create(e, c, out, priority, flags); });
}

EXPORT Result aclrtDestroyStream(StreamHandle stream) {
  return call<"aclrtDestroyStream">([&](const Entry &e, const ContextPtr &c) { return destroy(e, c, stream, true); });
}
EXPORT Result aclrtDestroyStreamForce(StreamHandle stream) {
  return call<"aclrtDestroyStreamForce">([&](const Entry &e, const ContextPtr &c) { return destroy(e, c, stream, false); });
}

// Work that runs is let go, and work that waits will not run. The stream can be used again.
EXPORT Result aclrtStreamAbort(StreamHandle stream) {
  return call_on<"aclrtStreamAbort">(stream, [&](const Entry &, const AclStreamPtr &s) -> Result {
    if (s->special) return kInvalidParameter;
    s->cancel();
    return kSuccess;
  });
}

EXPORT Result aclrtSynchronizeStream(StreamHandle stream) {
  return call_on<"aclrtSynchronizeStream">(stream,
                                           [](const Entry &, const AclStreamPtr &s) { return synchronize_for(s, -1); });
}
EXPORT Result aclrtSynchronizeStreamWithTimeout(StreamHandle stream, int32_t ms) {
  return call_on<"aclrtSynchronizeStreamWithTimeout">(
      stream, [&](const Entry &, const AclStreamPtr &s) { return synchronize_for(s, ms); });
}

EXPORT Result aclrtStreamQuery(StreamHandle stream, int *status) {
  return call_on<"aclrtStreamQuery">(stream, [&](const Entry &, const AclStreamPtr &s) -> Result {
    if (!status) return kInvalidParameter;
    const Code code = query(s);
    *status = code == Code::Ok ? kStreamComplete : kStreamNotReady;
    return code == Code::NotReady ? kSuccess : number(code, &s->device);
  });
}

EXPORT Result aclrtStreamGetId(StreamHandle stream, int32_t *out) {
  return call_on<"aclrtStreamGetId">(stream, [&](const Entry &, const AclStreamPtr &s) -> Result {
    if (!out) return kInvalidParameter;
    *out = s->id;
    return kSuccess;
  });
}

// ---- capture --------------------------------------------------------------------------------------------------------------

EXPORT Result aclmdlRICaptureBegin(StreamHandle stream, int mode) {
  return call_on<"aclmdlRICaptureBegin">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (mode < kCaptureGlobal || mode > kCaptureRelaxed) return kInvalidValue;
    if (s->special) return kCaptureUnsupported;
    return number(begin_capture(e, s, mode), &s->device);
  });
}

EXPORT Result aclmdlRICaptureGetInfo(StreamHandle stream, int *status, GraphHandle *out) {
  return call_on<"aclmdlRICaptureGetInfo">(stream, [&](const Entry &, const AclStreamPtr &s) -> Result {
    if (!status || !out) return kInvalidParameter;
    *status = capture_status(s);
    *out = nullptr;  // the graph has no handle before the end
    return kSuccess;
  });
}

EXPORT Result aclmdlRICaptureEnd(StreamHandle stream, GraphHandle *out) {
  return call_on<"aclmdlRICaptureEnd">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (!out) return kInvalidParameter;
    uint64_t graph = 0;
    const Code code = end_capture(e, s, &graph);
    *out = pointer(graph);
    return number(code, &s->device);
  });
}

EXPORT Result aclmdlRIDestroy(GraphHandle graph) {
  return call<"aclmdlRIDestroy">([&](const Entry &e, const ContextPtr &) { return number(destroy_graph(e, graph)); });
}

// ---- value operations: only the newest versions of the library have them (REHEARSAL_ACL_STREAM_VALUES) --------------------

EXPORT Result aclrtValueWait(void *address, uint64_t value, uint32_t flags, StreamHandle stream) {
  return call_on<"aclrtValueWait">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (!options().stream_values) return kNotSupported;
    if (flags > kNor) return number(misuse(e.name(), Code::Invalid, "flags %#x", flags));
    return number(wait_value(e, s, word(address), value, kComparisons[flags], true), &s->device);
  });
}

EXPORT Result aclrtValueWrite(void *address, uint64_t value, uint32_t flags, StreamHandle stream) {
  return call_on<"aclrtValueWrite">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (!options().stream_values) return kNotSupported;
    if (flags) return number(misuse(e.name(), Code::Invalid, "flags %#x", flags));
    return number(write_value(e, s, word(address), value, true), &s->device);
  });
}

EXPORT Result aclrtLaunchHostFunc(StreamHandle stream, void (*function)(void *), void *argument) {
  return call_on<"aclrtLaunchHostFunc">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (!options().host_functions) return kNotSupported;
    return function ? number(host_function(e, s, function, argument), &s->device) : static_cast<Result>(kInvalidParameter);
  });
}
