// What happened: calls by name, what lives, misuse. And the door that every simulated function enters by, where faults are injected.
#pragma once

#include <atomic>
#include <cstddef>

#include "core/settings.hpp"

namespace rehearsal {

// Outcomes in no vendor's words; a skin has its own number for each.
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
  Broken,  // the device failed; its own number says how
  Lost,    // it was on a device that has been reset
};

// What the settings have in store for the work of one call.
struct Extras {
  int late = 0;  // the code with which it fails on the stream
  int slow_ms = 0;
  bool hang = false;
};

struct Counter;
REHEARSAL_API Counter &counter(const char *name);

// One call of a simulated function. A skin asks the two questions in this order before it does anything.
class REHEARSAL_API Entry {
 public:
  explicit Entry(Counter &c);
  const char *name() const noexcept { return name_; }
  bool in_child() const noexcept { return in_child_; }  // of a fork: the engine's threads are not here
  int fault() const noexcept { return fault_; }         // the code to return, nothing done; 0: none
  bool for_good() const noexcept { return for_good_; }  // and so do later calls on that device
  const Extras &extras() const noexcept { return extras_; }

 private:
  const char *name_ = "";
  bool in_child_ = false;
  int fault_ = 0;
  bool for_good_ = false;
  Extras extras_;
};

// Says it on stderr, counts it, and ends the process unless told otherwise. Returns the code.
REHEARSAL_API Code misuse(const char *call, Code code, const char *format, ...) __attribute__((format(printf, 3, 4)));

enum class Live { Allocation, Registration, Stream, Event, Communicator };
REHEARSAL_API void born(Live what) noexcept;
REHEARSAL_API void died(Live what) noexcept;

// Groups of calls that were opened and not closed, in all threads.
REHEARSAL_API std::atomic<int> &open_groups() noexcept;

// True on an engine's thread while it runs a function of the program.
REHEARSAL_API bool &in_host_function() noexcept;

// From now on a fork's child may not use the simulated libraries.
REHEARSAL_API void guard_forks();

}  // namespace rehearsal

extern "C" {
REHEARSAL_API unsigned long rehearsal_calls(const char *name);
REHEARSAL_API void rehearsal_reset_calls(void);
REHEARSAL_API void rehearsal_forgive(void);  // the faults that were asked for do not happen any more
REHEARSAL_API unsigned long rehearsal_misuses(void);
REHEARSAL_API size_t rehearsal_live(const char *what);
}
