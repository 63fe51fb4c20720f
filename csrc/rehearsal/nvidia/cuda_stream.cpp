// The simulated libcuda.so.1: streams, events, value operations, host functions, capture.
#include "nvidia/cuda_abi.hpp"

namespace rehearsal::cuda {
Context stream_context(const Stream &s);

// Turns the outcome of a look-up into a number. A stream or event that a reset has taken is a misuse: when the context has begun anew, the
// driver does not notice, and reads memory where the object was.
static Result found(const Entry &e, Code code, const void *handle) {
  if (code == Code::Lost) return number(misuse(e.name(), Code::BadHandle, "%p was lost when its device was reset", handle));
  return number(code);
}

Result find(const Entry &e, Device &d, StreamHandle h, StreamPtr *out) { return found(e, find_stream(e, d, h, out), h); }

Result find_here(const Entry &e, Device &d, StreamHandle h, StreamPtr *out) {
  if (const Result r = find(e, d, h, out)) return r;
  if (&(*out)->device == &d) return kSuccess;
  return number(misuse(e.name(), Code::NoContext, "a stream of device %d with device %d current", (*out)->device.ordinal(),
                       d.ordinal()));
}

namespace {

Result find(const Entry &e, EventHandle h, EventPtr *out) { return found(e, find_event(e, h, out), h); }

constexpr unsigned kFlush = 1u << 30;

Result wait(const Entry &e, Device &d, StreamHandle h, Address address, uint64_t value, unsigned flags, bool wide) {
  StreamPtr s;
  if (const Result r = find_here(e, d, h, &s)) return r;
  if (!stream_values() || (flags & kFlush)) return kNotSupported;
  if (flags > 3) return number(misuse(e.name(), Code::Invalid, "flags %#x", flags));
  return number(wait_value(e, s, address, value, static_cast<Compare>(flags), wide), &d);
}

Result write(const Entry &e, Device &d, StreamHandle h, Address address, uint64_t value, unsigned flags, bool wide) {
  StreamPtr s;
  if (const Result r = find_here(e, d, h, &s)) return r;
  if (!stream_values()) return kNotSupported;
  if (flags > 1) return number(misuse(e.name(), Code::Invalid, "flags %#x", flags));
  return number(write_value(e, s, address, value, wide), &d);
}

static_assert(static_cast<int>(Compare::GreaterEqual) == 0 && static_cast<int>(Compare::Equal) == 1 &&
              static_cast<int>(Compare::And) == 2 && static_cast<int>(Compare::Nor) == 3);

}  // namespace
}  // namespace rehearsal::cuda

using namespace rehearsal;
using namespace rehearsal::cuda;

// ---- streams --------------------------------------------------------------------------------------------------------------

EXPORT Result cuStreamCreate(StreamHandle *out, unsigned flags) {
  CUDA_CALL("cuStreamCreate");
  CUDA_CURRENT();
  return number(create_stream(entry, *device, out, flags, 0));
}
EXPORT Result cuStreamCreateWithPriority(StreamHandle *out, unsigned flags, int priority) {
  CUDA_CALL("cuStreamCreateWithPriority");
  CUDA_CURRENT();
  return number(create_stream(entry, *device, out, flags, priority));
}

EXPORT Result cuStreamDestroy_v2(StreamHandle stream) {
  CUDA_CALL("cuStreamDestroy_v2");
  CUDA_CURRENT();
  return number(destroy_stream(entry, *device, stream));
}

EXPORT Result cuStreamQuery(StreamHandle stream) {
  CUDA_CALL("cuStreamQuery");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find(entry, *device, stream, &s)) return r;
  return number(query_aside(s), &s->device);
}

EXPORT Result cuStreamSynchronize(StreamHandle stream) {
  CUDA_CALL("cuStreamSynchronize");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find(entry, *device, stream, &s)) return r;
  return number(synchronize(s), &s->device);
}

EXPORT Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
  CUDA_CALL("cuStreamWaitEvent");
  CUDA_CURRENT();
  StreamPtr s;
  EventPtr ev;
  if (const Result r = find_here(entry, *device, stream, &s)) return r;
  if (const Result r = find(entry, event, &ev)) return r;
  if (flags > 1) return kInvalidValue;
  return number(wait_event(entry, s, ev), device);
}

EXPORT Result cuStreamGetCtx(StreamHandle stream, Context *out) {
  CUDA_CALL("cuStreamGetCtx");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find(entry, *device, stream, &s)) return r;
  if (!out) return kInvalidValue;
  *out = stream_context(*s);
  return kSuccess;
}

// ---- capture --------------------------------------------------------------------------------------------------------------

EXPORT Result cuStreamIsCapturing(StreamHandle stream, int *out) {
  CUDA_CALL("cuStreamIsCapturing");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find(entry, *device, stream, &s)) return r;
  if (!out) return kInvalidValue;
  *out = capture_status(s);
  return kSuccess;
}

EXPORT Result cuThreadExchangeStreamCaptureMode(int *mode) {
  CUDA_CALL("cuThreadExchangeStreamCaptureMode");
  if (!mode || *mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode_of_thread());
  return kSuccess;
}

EXPORT Result cuStreamBeginCapture_v2(StreamHandle stream, int mode) {
  CUDA_CALL("cuStreamBeginCapture_v2");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find_here(entry, *device, stream, &s)) return r;
  if (mode < 0 || mode > 2) return kInvalidValue;
  return number(begin_capture(entry, s, mode), device);
}

EXPORT Result cuStreamEndCapture(StreamHandle stream, GraphHandle *out) {
  CUDA_CALL("cuStreamEndCapture");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find_here(entry, *device, stream, &s)) return r;
  if (!out) return kInvalidValue;
  uint64_t graph = 0;
  const Code code = end_capture(entry, s, &graph);
  *out = pointer(graph);
  return number(code, device);
}

EXPORT Result cuGraphDestroy(GraphHandle graph) {
  CUDA_CALL("cuGraphDestroy");
  return number(destroy_graph(entry, graph));
}

// ---- value operations and host functions ----------------------------------------------------------------------------------

EXPORT Result cuStreamWaitValue32_v2(StreamHandle stream, Address address, uint32_t value, unsigned flags) {
  CUDA_CALL("cuStreamWaitValue32_v2");
  CUDA_CURRENT();
  return wait(entry, *device, stream, address, value, flags, false);
}
EXPORT Result cuStreamWaitValue64_v2(StreamHandle stream, Address address, uint64_t value, unsigned flags) {
  CUDA_CALL("cuStreamWaitValue64_v2");
  CUDA_CURRENT();
  return wait(entry, *device, stream, address, value, flags, true);
}
EXPORT Result cuStreamWriteValue32_v2(StreamHandle stream, Address address, uint32_t value, unsigned flags) {
  CUDA_CALL("cuStreamWriteValue32_v2");
  CUDA_CURRENT();
  return write(entry, *device, stream, address, value, flags, false);
}
EXPORT Result cuStreamWriteValue64_v2(StreamHandle stream, Address address, uint64_t value, unsigned flags) {
  CUDA_CALL("cuStreamWriteValue64_v2");
  CUDA_CURRENT();
  return write(entry, *device, stream, address, value, flags, true);
}

EXPORT Result cuLaunchHostFunc(StreamHandle stream, void (*function)(void *), void *argument) {
  CUDA_CALL("cuLaunchHostFunc");
  CUDA_CURRENT();
  StreamPtr s;
  if (const Result r = find_here(entry, *device, stream, &s)) return r;
  return number(host_function(entry, s, function, argument), device);
}

// ---- events ---------------------------------------------------------------------------------------------------------------

EXPORT Result cuEventCreate(EventHandle *out, unsigned flags) {
  CUDA_CALL("cuEventCreate");
  CUDA_CURRENT();
  if (!out || (flags & ~7u)) return kInvalidValue;
  if (flags & 4) return kNotSupported;  // between processes
  return number(create_event(*device, out, (flags & 2) == 0));
}

EXPORT Result cuEventDestroy_v2(EventHandle event) {
  CUDA_CALL("cuEventDestroy_v2");
  CUDA_CURRENT();
  return number(destroy_event(entry, event));
}

EXPORT Result cuEventRecord(EventHandle event, StreamHandle stream) {
  CUDA_CALL("cuEventRecord");
  CUDA_CURRENT();
  StreamPtr s;
  EventPtr ev;
  if (const Result r = find(entry, event, &ev)) return r;
  if (const Result r = find_here(entry, *device, stream, &s)) return r;
  return number(record_here(entry, ev, s), device);
}

EXPORT Result cuEventQuery(EventHandle event) {
  CUDA_CALL("cuEventQuery");
  CUDA_CURRENT();
  EventPtr ev;
  if (const Result r = find(entry, event, &ev)) return r;
  return number(query_aside(ev), Machine::get().device(ev->device));
}

EXPORT Result cuEventSynchronize(EventHandle event) {
  CUDA_CALL("cuEventSynchronize");
  CUDA_CURRENT();
  EventPtr ev;
  if (const Result r = find(entry, event, &ev)) return r;
  return number(synchronize(ev), Machine::get().device(ev->device));
}

namespace {
Result elapsed(const Entry &entry, float *out, EventHandle first, EventHandle second) {
  EventPtr a, b;
  if (const Result r = find(entry, first, &a)) return r;
  if (const Result r = find(entry, second, &b)) return r;
  return number(elapsed_ms(a, b, out));
}
}  // namespace

EXPORT Result cuEventElapsedTime(float *out, EventHandle first, EventHandle second) {
  CUDA_CALL("cuEventElapsedTime");
  CUDA_CURRENT();
  return elapsed(entry, out, first, second);
}
EXPORT Result cuEventElapsedTime_v2(float *out, EventHandle first, EventHandle second) {
  CUDA_CALL("cuEventElapsedTime_v2");
  CUDA_CURRENT();
  return elapsed(entry, out, first, second);
}
