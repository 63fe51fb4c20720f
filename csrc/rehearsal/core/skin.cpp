#include "core/skin.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace rehearsal {

void announce_simulation(const char *what) {
  static std::once_flag once;
  std::call_once(once, [&] {
    if (!settings().quiet)
      std::fprintf(stderr, "rehearsal: simulated %s, %d device(s); no figure of this process is a measurement\n", what,
                   settings().devices);
  });
}

namespace {
// Whether a call works on the device. A question about the machine does not, nor does a call that ends something. The name tells.
bool needs_a_device_that_works(const char *call) {
  for (const char *part : {"Destroy", "Free", "Unregister", "Ctx", "Context", "Device", "Error", "Err", "Version", "Init",
                           "Name", "Thread", "Status"})
    if (std::strstr(call, part)) return false;
  return true;
}
}  // namespace

int fault_of(const Entry &e) {
  Device *const device = Machine::started() ? current_device() : nullptr;
  if (device && e.for_good()) device->break_down_for_good(e.fault());
  if (e.fault() || !device) return e.fault();
  const int code = device->fails();
  return code && needs_a_device_that_works(e.name()) ? code : 0;
}

int pci_domain() { return ::getpid() & 0xffff; }

void device_uuid(int ordinal, unsigned char uuid[16]) {
  const int32_t tail[2] = {::getpid(), ordinal};
  std::copy_n("rehearse", 8, uuid);
  std::memcpy(uuid + 8, tail, 8);
}

// ---- streams --------------------------------------------------------------------------------------------------------------

namespace {
thread_local int thread_defaults = 0;
}
ThreadDefault::ThreadDefault() { ++thread_defaults; }
ThreadDefault::~ThreadDefault() { --thread_defaults; }

StreamPtr default_stream(Device &d) { return thread_defaults > 0 ? d.thread_stream() : d.null_stream(); }

StreamPtr find_stream(void *handle, Device &d) {
  const uint64_t h = word(handle);
  if (h == 0) return default_stream(d);
  if (h == 1) return d.null_stream();
  if (h == 2) return d.thread_stream();
  return Machine::get().streams.find(h);
}

Code find_stream(const Entry &e, Device &d, void *handle, StreamPtr *out) {
  *out = find_stream(handle, d);
  if (*out) return Code::Ok;
  if (Machine::get().streams.lost(word(handle))) return Code::Lost;
  return misuse(e.name(), Code::BadHandle, "stream %p %s", handle, Machine::get().streams.why_not(word(handle)));
}

Code create_stream(const Entry &e, Device &d, void **out, unsigned flags, int priority) {
  if (!out || flags > 1) return misuse(e.name(), Code::Invalid, "flags %u", flags);
  const auto lock = d.enter();
  const Kind kind = flags & 1 ? Kind::Apart : Kind::Blocking;
  const auto stream = std::make_shared<Stream>(d, d.next_queue(), flags, priority, true, kind);
  if (kind == Kind::Blocking) d.add_blocking(stream);
  *out = pointer(Machine::get().streams.add(stream));
  born(Live::Stream);
  return Code::Ok;
}

Code destroy_stream(const Entry &e, Device &d, void *handle) {
  if (word(handle) <= 2) return misuse(e.name(), Code::BadHandle, "a stream of the device's own");
  StreamPtr s;
  if (const Code c = find_stream(e, d, handle, &s); c != Code::Ok) return c;
  const auto lock = s->device.enter();
  if (Machine::get().streams.remove(word(handle))) died(Live::Stream);  // items hold the stream until they are done
  return Code::Ok;
}

int capture_status(const StreamPtr &s) {
  const auto lock = s->device.enter();
  const auto capture = s->capture();
  return !capture ? 0 : capture->invalid.load() ? 2 : 1;
}

Code destroy_graph(const Entry &e, void *handle) {
  auto &graphs = Machine::get().graphs;
  if (graphs.remove(word(handle))) return Code::Ok;
  return misuse(e.name(), Code::BadHandle, "graph %p %s", handle, graphs.why_not(word(handle)));
}

// ---- events ---------------------------------------------------------------------------------------------------------------

Code find_event(const Entry &e, void *handle, EventPtr *out) {
  *out = Machine::get().events.find(word(handle));
  if (*out) return Code::Ok;
  if (Machine::get().events.lost(word(handle))) return Code::Lost;
  return misuse(e.name(), Code::BadHandle, "event %p %s", handle, Machine::get().events.why_not(word(handle)));
}

Code create_event(Device &d, void **out, bool timing) {
  const auto lock = d.enter();
  const auto event = std::make_shared<Event>();
  event->device = d.ordinal();
  event->timing = timing;
  *out = pointer(Machine::get().events.add(event));
  born(Live::Event);
  return Code::Ok;
}

Code destroy_event(const Entry &e, void *handle) {
  EventPtr event;
  if (const Code c = find_event(e, handle, &event); c != Code::Ok) return c;
  const auto lock = Machine::get().device(event->device)->enter();
  if (Machine::get().events.remove(word(handle))) died(Live::Event);
  return Code::Ok;
}

Code record_here(const Entry &e, const EventPtr &event, const StreamPtr &s) {
  if (event->device == s->device.ordinal()) return record(e, event, s);
  return misuse(e.name(), Code::BadHandle, "an event of device %d on a stream of device %d", event->device,
                s->device.ordinal());
}

Code elapsed_ms(const EventPtr &first, const EventPtr &second, float *out) {
  if (!out) return Code::Invalid;
  int64_t at[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    Event &event = i ? *second : *first;
    const Lock lock(event.mutex);
    if (!event.timing || !event.marker) return Code::BadHandle;
    if (!event.marker->done.load(std::memory_order_acquire)) return Code::NotReady;
    at[i] = event.marker->at_ns.load(std::memory_order_relaxed);
  }
  *out = static_cast<float>(static_cast<double>(at[1] - at[0]) / 1e6);
  return Code::Ok;
}

// ---- memory ---------------------------------------------------------------------------------------------------------------

Device &owner_of(uintptr_t address, Device &otherwise) {
  const Place p = find_place(address);
  return p.found() ? *Machine::get().device(p.block->device) : otherwise;
}

size_t memory_left(Device &d) {
  const auto lock = d.enter();
  return settings().memory - memory_used(d.ordinal());
}

Code device_address(Device &d, const void *host, uintptr_t *out) {
  const auto lock = d.enter();
  const Place p = find_place(word(host));
  if (!p.found() || !p.by_host_pointer) return Code::Invalid;
  *out = p.block->address + p.offset;
  return Code::Ok;
}

Code copy_now(const Entry &e, const StreamPtr &s, uintptr_t to, Side to_side, uintptr_t from, Side from_side, size_t bytes) {
  if (forbidden_by_capture()) return Code::CaptureUnsupported;
  const Code code = copy(e, s, to, to_side, from, from_side, bytes);
  return code == Code::Ok ? synchronize(s) : code;
}

int &capture_mode_of_thread() {
  static thread_local int mode = 0;
  return mode;
}

}  // namespace rehearsal
