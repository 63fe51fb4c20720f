// A skin is one simulated library of a vendor: the vendor's names, numbers and rules over the simulated machine. Here is what the skins
// have in common: how they export functions, what their handles are, and the bodies of functions that all vendors have under some name.
// Outcomes are Codes, which a skin translates into the vendor's numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/machine.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace rehearsal {

inline uint64_t word(const void *p) { return reinterpret_cast<uint64_t>(p); }
inline void *pointer(uint64_t w) { return reinterpret_cast<void *>(w); }

// The name of a function as an argument of a template. So each function's template has a counter of its own.
template <size_t size>
struct Name {
  char text[size];
  consteval Name(const char (&t)[size]) { std::copy_n(t, size, text); }
};

// Writes one line on stderr: this process is simulated. Later calls write nothing.
REHEARSAL_API void announce_simulation(const char *what);

// The vendor's code that the call has to return at once, because the settings have a fault for the call, or because the thread's device has
// failed for good. 0: none. A question about the machine, and a call that ends something, are let through on a device that has failed for
// good.
REHEARSAL_API int fault_of(const Entry &e);

// ---- where a device is ----------------------------------------------------------------------------------------------------
//
// Each process has devices of its own. So the PCI address and the UUID of a device differ between processes.

REHEARSAL_API int pci_domain();
constexpr int pci_bus(int ordinal) { return ordinal + 1; }
REHEARSAL_API void device_uuid(int ordinal, unsigned char uuid[16]);

// ---- streams --------------------------------------------------------------------------------------------------------------

// As long as a ThreadDefault lives in a thread, the null stream is the thread's default stream. A program that is compiled in that way
// calls functions of other names (cuStreamQuery_ptsz). Each of these functions has a ThreadDefault.
struct REHEARSAL_API ThreadDefault {
  ThreadDefault();
  ~ThreadDefault();
  ThreadDefault(const ThreadDefault &) = delete;
  ThreadDefault &operator=(const ThreadDefault &) = delete;
};
REHEARSAL_API StreamPtr default_stream(Device &d);  // the stream of a null handle
// The stream of a handle; null: there is none. A handle is a number of the program's streams, or one of three that always exist: null (the
// default stream), 1 (the device's null stream) and 2 (the thread's default stream). `d`: the device of these three.
REHEARSAL_API StreamPtr find_stream(void *handle, Device &d);
// The same. No such stream is a misuse; Lost: a reset has taken the stream.
REHEARSAL_API Code find_stream(const Entry &e, Device &d, void *handle, StreamPtr *out);
// `flags`: 0 or 1; a stream of flag 1 and the null stream do not wait for each other.
REHEARSAL_API Code create_stream(const Entry &e, Device &d, void **out, unsigned flags, int priority);
// Work that was submitted is still done. A stream that the device made cannot be destroyed.
REHEARSAL_API Code destroy_stream(const Entry &e, Device &d, void *handle);

// The capture mode of the calling thread. 0: global, 1: thread-local, 2: relaxed. A relaxed thread may make unsafe calls during a capture.
REHEARSAL_API int &capture_mode_of_thread();
// Whether the calling thread may make no unsafe call, because some global capture is under way.
inline bool forbidden_by_capture() { return Machine::get().global_captures.load() > 0 && capture_mode_of_thread() != 2; }
// query() of a stream or an event; CaptureUnsupported while a capture forbids the question.
template <class Asked>
Code query_aside(const Asked &asked) {
  const Code code = query(asked);  // a question about a stream that captures makes the capture invalid
  return (code == Code::Ok || code == Code::NotReady) && forbidden_by_capture() ? Code::CaptureUnsupported : code;
}
REHEARSAL_API int capture_status(const StreamPtr &s);  // 0: none, 1: captures, 2: invalid
REHEARSAL_API Code destroy_graph(const Entry &e, void *handle);

// ---- events ---------------------------------------------------------------------------------------------------------------

REHEARSAL_API Code find_event(const Entry &e, void *handle, EventPtr *out);  // no such event is a misuse; Lost: by a reset
REHEARSAL_API Code create_event(Device &d, void **out, bool timing);
REHEARSAL_API Code destroy_event(const Entry &e, void *handle);
REHEARSAL_API Code record_here(const Entry &e, const EventPtr &event, const StreamPtr &s);  // both must be of one device
// The time between two records. BadHandle: an event without timing, or never recorded. NotReady: not reached.
REHEARSAL_API Code elapsed_ms(const EventPtr &first, const EventPtr &second, float *out);

// ---- memory ---------------------------------------------------------------------------------------------------------------

// The device whose memory the address is; `otherwise`: the address is unknown.
REHEARSAL_API Device &owner_of(uintptr_t address, Device &otherwise);
REHEARSAL_API size_t memory_left(Device &d);  // bytes
// The device's address of a pointer into registered host memory. Invalid: not registered.
REHEARSAL_API Code device_address(Device &d, const void *host, uintptr_t *out);
// A copy that is done when copy_now() returns.
REHEARSAL_API Code copy_now(const Entry &e, const StreamPtr &s, uintptr_t to, Side to_side, uintptr_t from, Side from_side,
                            size_t bytes);

}  // namespace rehearsal
