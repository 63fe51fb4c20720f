// The simulated libamdhip64.so: streams, events, value operations, host functions, capture.
//
// Work may be submitted to a stream of any device, whatever device is current. The null stream is the current device's.
#include "amd/hip_abi.hpp"

namespace rehearsal::hip {
namespace {

// A call on the stream of a handle, or on the event of a handle. Broken means a failure of the stream's or event's device.
template <class Body>
Result on(const Entry &e, Device &current, StreamHandle h, Body body) {
  StreamPtr s;
  if (const Code c = find_stream(e, current, h, &s); c != Code::Ok) return number(c);
  return number(body(s), &s->device);
}
template <class Body>
Result on(const Entry &e, EventHandle h, Body body) {
  EventPtr event;
  if (const Code c = find_event(e, h, &event); c != Code::Ok) return number(c);
  return number(body(event), Machine::get().device(event->device));
}

constexpr Compare kComparisons[] = {Compare::SignedGreaterEqual, Compare::Equal, Compare::And, Compare::Nor};
static_assert(kAtLeast == 0 && kEqual == 1 && kAnd == 2 && kNor == 3);

// A real queue can only look at signal memory. Some versions of the runtime look at registered host memory in the queue's place.
bool may_wait_at(uintptr_t address) {
  const Place p = find_place(address);
  if (!p.found()) return true;  // the engine reports the misuse
  return p.block->is(Pinned::Signal) || (options().wait_anywhere && p.block->on_host());
}

Result wait(const Entry &e, Device &current, StreamHandle h, void *address, uint64_t value, unsigned flags, bool wide) {
  return on(e, current, h, [&](const StreamPtr &s) {
    if (flags > kNor) return misuse(e.name(), Code::Invalid, "flags %#x", flags);
    if (!may_wait_at(word(address)))
      return misuse(e.name(), Code::Invalid,
                    "%p is not signal memory (REHEARSAL_HIP_WAIT_ANYWHERE allows registered memory)", address);
    return wait_value(e, s, word(address), value, kComparisons[flags], wide);
  });
}

Result write(const Entry &e, Device &current, StreamHandle h, void *address, uint64_t value, unsigned flags, bool wide) {
  return on(e, current, h, [&](const StreamPtr &s) {
    if (flags) return misuse(e.name(), Code::Invalid, "flags %#x", flags);
    return write_value(e, s, word(address), value, wide);
  });
}

Result create(const Entry &e, Device &d, EventHandle *out, unsigned flags) {
  constexpr unsigned all =
      kBlockingSync | kDisableTiming | kInterprocess | kDisableSystemFence | kReleaseToDevice | kReleaseToSystem;
  if (!out || (flags & ~all)) return number(misuse(e.name(), Code::Invalid, "flags %#x", flags));
  if (flags & kInterprocess) return kNotSupported;
  return number(create_event(d, out, (flags & kDisableTiming) == 0));
}

}  // namespace
}  // namespace rehearsal::hip

using namespace rehearsal;
using namespace rehearsal::hip;

// ---- streams --------------------------------------------------------------------------------------------------------------

EXPORT Result hipStreamCreate(StreamHandle *out) {
  return call<"hipStreamCreate">(
      [&](const Entry &e, Device &device) { return number(create_stream(e, device, out, 0, 0)); });
}
EXPORT Result hipStreamCreateWithFlags(StreamHandle *out, unsigned flags) {
  return call<"hipStreamCreateWithFlags">(
      [&](const Entry &e, Device &device) { return number(create_stream(e, device, out, flags, 0)); });
}
EXPORT Result hipStreamCreateWithPriority(StreamHandle *out, unsigned flags, int priority) {
  return call<"hipStreamCreateWithPriority">(
      [&](const Entry &e, Device &device) { return number(create_stream(e, device, out, flags, priority)); });
}

EXPORT Result hipStreamDestroy(StreamHandle stream) {
  return call<"hipStreamDestroy">([&](const Entry &e, Device &device) { return number(destroy_stream(e, device, stream)); });
}

EXPORT Result hipStreamQuery(StreamHandle stream) {
  return call<"hipStreamQuery">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [](const StreamPtr &s) { return query_aside(s); });
  });
}

EXPORT Result hipStreamSynchronize(StreamHandle stream) {
  return call<"hipStreamSynchronize">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [](const StreamPtr &s) { return synchronize(s); });
  });
}

EXPORT Result hipStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
  return call<"hipStreamWaitEvent">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [&](const StreamPtr &s) {
      EventPtr ev;
      if (const Code c = find_event(e, event, &ev); c != Code::Ok) return c;
      return flags ? Code::Invalid : wait_event(e, s, ev);
    });
  });
}

#if HIP_MAJOR >= 6  // version 5.2 does not have it yet
EXPORT Result hipStreamGetDevice(StreamHandle stream, int *out) {
  return call<"hipStreamGetDevice">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [&](const StreamPtr &s) {
      if (!out) return Code::Invalid;
      *out = s->device.ordinal();
      return Code::Ok;
    });
  });
}
#endif

// ---- capture --------------------------------------------------------------------------------------------------------------

EXPORT Result hipStreamIsCapturing(StreamHandle stream, int *out) {
  return call<"hipStreamIsCapturing">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [&](const StreamPtr &s) {
      if (!out) return Code::Invalid;
      *out = capture_status(s);
      return Code::Ok;
    });
  });
}

EXPORT Result hipThreadExchangeStreamCaptureMode(int *mode) {
  return call<"hipThreadExchangeStreamCaptureMode">([&](const Entry &, Device &) {
    if (!mode || *mode < 0 || *mode > 2) return kInvalidValue;
    std::swap(*mode, capture_mode_of_thread());
    return kSuccess;
  });
}

EXPORT Result hipStreamBeginCapture(StreamHandle stream, int mode) {
  return call<"hipStreamBeginCapture">([&](const Entry &e, Device &device) {
    return on(e, device, stream,
              [&](const StreamPtr &s) { return mode < 0 || mode > 2 ? Code::Invalid : begin_capture(e, s, mode); });
  });
}

EXPORT Result hipStreamEndCapture(StreamHandle stream, GraphHandle *out) {
  return call<"hipStreamEndCapture">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [&](const StreamPtr &s) {
      if (!out) return Code::Invalid;
      uint64_t graph = 0;
      const Code code = end_capture(e, s, &graph);
      *out = pointer(graph);
      return code;
    });
  });
}

EXPORT Result hipGraphDestroy(GraphHandle graph) {
  return call<"hipGraphDestroy">([&](const Entry &e, Device &) { return number(destroy_graph(e, graph)); });
}

// ---- value operations and host functions. A mask must have all bits --------------------------------------------------------

EXPORT Result hipStreamWaitValue32(StreamHandle stream, void *address, uint32_t value, unsigned flags, uint32_t mask) {
  return call<"hipStreamWaitValue32">([&](const Entry &e, Device &device) -> Result {
    return ~mask ? kNotSupported : wait(e, device, stream, address, value, flags, false);
  });
}
EXPORT Result hipStreamWaitValue64(StreamHandle stream, void *address, uint64_t value, unsigned flags, uint64_t mask) {
  return call<"hipStreamWaitValue64">([&](const Entry &e, Device &device) -> Result {
    return ~mask ? kNotSupported : wait(e, device, stream, address, value, flags, true);
  });
}
EXPORT Result hipStreamWriteValue32(StreamHandle stream, void *address, uint32_t value, unsigned flags) {
  return call<"hipStreamWriteValue32">(
      [&](const Entry &e, Device &device) { return write(e, device, stream, address, value, flags, false); });
}
EXPORT Result hipStreamWriteValue64(StreamHandle stream, void *address, uint64_t value, unsigned flags) {
  return call<"hipStreamWriteValue64">(
      [&](const Entry &e, Device &device) { return write(e, device, stream, address, value, flags, true); });
}

EXPORT Result hipLaunchHostFunc(StreamHandle stream, void (*function)(void *), void *argument) {
  return call<"hipLaunchHostFunc">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [&](const StreamPtr &s) { return host_function(e, s, function, argument); });
  });
}

// ---- events ---------------------------------------------------------------------------------------------------------------

EXPORT Result hipEventCreate(EventHandle *out) {
  return call<"hipEventCreate">([&](const Entry &e, Device &device) { return create(e, device, out, 0); });
}
EXPORT Result hipEventCreateWithFlags(EventHandle *out, unsigned flags) {
  return call<"hipEventCreateWithFlags">([&](const Entry &e, Device &device) { return create(e, device, out, flags); });
}

EXPORT Result hipEventDestroy(EventHandle event) {
  return call<"hipEventDestroy">([&](const Entry &e, Device &) { return number(destroy_event(e, event)); });
}

EXPORT Result hipEventRecord(EventHandle event, StreamHandle stream) {
  return call<"hipEventRecord">([&](const Entry &e, Device &device) {
    return on(e, device, stream, [&](const StreamPtr &s) {
      EventPtr ev;
      const Code c = find_event(e, event, &ev);
      return c == Code::Ok ? record_here(e, ev, s) : c;
    });
  });
}

EXPORT Result hipEventQuery(EventHandle event) {
  return call<"hipEventQuery">(
      [&](const Entry &e, Device &) { return on(e, event, [](const EventPtr &ev) { return query_aside(ev); }); });
}

EXPORT Result hipEventSynchronize(EventHandle event) {
  return call<"hipEventSynchronize">(
      [&](const Entry &e, Device &) { return on(e, event, [](const EventPtr &ev) { return synchronize(ev); }); });
}

EXPORT Result hipEventElapsedTime(float *out, EventHandle first, EventHandle second) {
  return call<"hipEventElapsedTime">([&](const Entry &e, Device &) {
    return on(e, first, [&](const EventPtr &a) {
      EventPtr b;
      const Code c = find_event(e, second, &b);
      return c == Code::Ok ? elapsed_ms(a, b, out) : c;
    });
  });
}
