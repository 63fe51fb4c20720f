// The ledger counts calls by name, living objects and misuse. Entry is the door of every simulated function: it counts the call, and
// injects the faults that the settings want.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/settings.hpp"

namespace rehearsal {

// The outcome of a call, in no vendor's words. A skin has the vendor's number for each.
enum class Code {
  Ok,
  Invalid,
  NoMemory,
  NotReady,
  NoContext,
  NoDevice,
  BadHandle,
  Registered,
  NotRegistered,
  Illegal,
  IllegalState,
  CaptureUnsupported,
  CaptureInvalidated,
  CaptureUnmatched,
  CapturedEvent,
  NotPermitted,
  Broken,  // the device has failed; Device::broken() has the vendor's number
  Lost,    // the object was on a device that has been reset
};

// Faults that the settings want for the work of one call, when the work runs on the stream.
struct Extras {
  int late = 0;       // the work fails with this code of the vendor; 0: it does not
  int slow_ms = 0;    // the work begins so much later
  bool hang = false;  // the work does not end by itself
};

struct Counter;
// The counter of a function. The counter lives for ever. A "_v2" at the end of the name is left out.
REHEARSAL_API Counter &counter(const char *name);

// One call of a simulated function. A skin asks in_child() first, then fault(), and only then does something.
class REHEARSAL_API Entry {
 public:
  explicit Entry(Counter &c);
  const char *name() const noexcept { return name_; }
  bool in_child() const noexcept { return in_child_; }  // in a fork's child, which has no threads of the queues
  int fault() const noexcept { return fault_; }         // the vendor's code to return at once; 0: none
  bool for_good() const noexcept { return for_good_; }  // later calls on the device return that code, too
  const Extras &extras() const noexcept { return extras_; }

 private:
  const char *name_ = "";
  bool in_child_ = false;
  int fault_ = 0;
  bool for_good_ = false;
  Extras extras_;
};

// The program has misused the vendor's interface. Writes a line on stderr, counts the misuse, and aborts the process unless
// REHEARSAL_ABORT_ON_MISUSE=0. Returns `code`.
REHEARSAL_API Code misuse(const char *call, Code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

enum class Live { Allocation, Registration, Stream, Event, Communicator };
REHEARSAL_API void born(Live what) noexcept;
REHEARSAL_API void died(Live what) noexcept;

// The number of groups of calls that are open, in all threads.
REHEARSAL_API std::atomic<int> &open_groups() noexcept;

// Notes that a copy has carried bytes between the host and a device, and for how long that has kept the copy engine at work.
REHEARSAL_API void note_carried(bool out, unsigned long bytes, int64_t busy_ns) noexcept;

// True while the calling thread runs a host function of the program for a stream. There no vendor's function may be called.
REHEARSAL_API bool &in_host_function() noexcept;

// From the first call on, a child of fork() may not use the simulated libraries.
REHEARSAL_API void guard_forks();

}  // namespace rehearsal

// For tests.
extern "C" {
REHEARSAL_API unsigned long rehearsal_calls(const char *name);  // of that function, since the last reset
REHEARSAL_API void rehearsal_reset_calls(void);
// Bytes that copies have carried from devices to the host (`out` is not 0), or from the host to devices, since the last reset. A library's calls carry
// none.
REHEARSAL_API unsigned long rehearsal_carried(int out);
// Nanoseconds for which those copies have kept the devices' copy engines of that direction at work, by the clock.
REHEARSAL_API unsigned long rehearsal_busy(int out);
REHEARSAL_API void rehearsal_forgive(void);  // from now on no fault is injected
REHEARSAL_API unsigned long rehearsal_misuses(void);
// How many live of: "allocation", "registration", "stream", "event", "communicator".
REHEARSAL_API size_t rehearsal_live(const char *what);
}
