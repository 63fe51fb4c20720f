// What the vendors' skins have in common: how they export, what their handles are, and the bodies of functions that all of them have under
// one name or another. Outcomes are the engine's; a skin says them in its own numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/machine.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace rehearsal {

inline uint64_t word(const void *p) { return reinterpret_cast<uint64_t>(p); }
inline void *pointer(uint64_t w) { return reinterpret_cast<void *>(w); }

// The name of a function as an argument of a template, so that each has its counter.
template <size_t size>
struct Name {
  char text[size];
  consteval Name(const char (&t)[size]) { std::copy_n(t, size, text); }
};

// Says once in a process that it is simulated.
REHEARSAL_API void announce_simulation(const char *what);

// The code that the settings give this call, or that its thread's device has for all since one failed for good. 0: none.
REHEARSAL_API int fault_of(const Entry &e);

// ---- where a device is: each process has devices of its own, so their places in the machine differ, too --------------------

REHEARSAL_API int pci_domain();
constexpr int pci_bus(int ordinal) { return ordinal + 1; }
REHEARSAL_API void device_uuid(int ordinal, unsigned char uuid[16]);

// ---- streams --------------------------------------------------------------------------------------------------------------

// A program may be compiled so that null is its thread's stream: then it calls functions of other names, in which one of these lives.
struct REHEARSAL_API ThreadDefault {
  ThreadDefault();
  ~ThreadDefault();
  ThreadDefault(const ThreadDefault &) = delete;
  ThreadDefault &operator=(const ThreadDefault &) = delete;
};
REHEARSAL_API StreamPtr default_stream(Device &d);  // what null is
// A stream of the program, or one that it need not make: null and 1, the device's, and 2, the thread's. `d`: whose, if the handle does not say.
REHEARSAL_API StreamPtr find_stream(void *handle, Device &d);
// Misuse if there is none; Lost if it went with a reset.
REHEARSAL_API Code find_stream(const Entry &e, Device &d, void *handle, StreamPtr *out);
REHEARSAL_API Code create_stream(const Entry &e, Device &d, void **out, unsigned flags, int priority);
REHEARSAL_API Code destroy_stream(const Entry &e, Device &d, void *handle);

// 0: global, 1: of the thread, 2: relaxed, in which a thread may call what captures of others forbid.
REHEARSAL_API int &capture_mode_of_thread();
// What may not be called while any thread captures into a graph in the mode that forbids it.
inline bool forbidden_by_capture() { return Machine::get().global_captures.load() > 0 && capture_mode_of_thread() != 2; }
// What a stream or an event answers, unless a capture forbids the question.
template <class Asked>
Code query_aside(const Asked &asked) {
  const Code code = query(asked);  // of what captures itself: that ends it
  return (code == Code::Ok || code == Code::NotReady) && forbidden_by_capture() ? Code::CaptureUnsupported : code;
}
REHEARSAL_API int capture_status(const StreamPtr &s);  // 0: none, 1: captures, 2: invalid
REHEARSAL_API Code destroy_graph(const Entry &e, void *handle);

// ---- events ---------------------------------------------------------------------------------------------------------------

REHEARSAL_API Code find_event(const Entry &e, void *handle, EventPtr *out);  // likewise
REHEARSAL_API Code create_event(Device &d, void **out, bool timing);
REHEARSAL_API Code destroy_event(const Entry &e, void *handle);
REHEARSAL_API Code record_here(const Entry &e, const EventPtr &event, const StreamPtr &s);  // both of one device
REHEARSAL_API Code elapsed_ms(const EventPtr &first, const EventPtr &second, float *out);

// ---- memory ---------------------------------------------------------------------------------------------------------------

// The device whose memory that is; `otherwise` if nobody knows it.
REHEARSAL_API Device &owner_of(uintptr_t address, Device &otherwise);
REHEARSAL_API size_t memory_left(Device &d);
// The device's address of a pointer into registered host memory.
REHEARSAL_API Code device_address(Device &d, const void *host, uintptr_t *out);
// A copy that is done when the call returns.
REHEARSAL_API Code copy_now(const Entry &e, const StreamPtr &s, uintptr_t to, Side to_side, uintptr_t from, Side from_side,
                            size_t bytes);

}  // namespace rehearsal
