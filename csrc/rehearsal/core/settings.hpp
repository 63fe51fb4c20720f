// The settings of the simulated machine, which are environment variables: REHEARSAL_ and the field's name in capitals. They are read once,
// at the first call of any simulated library. A value that cannot be read aborts the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define REHEARSAL_API __attribute__((visibility("default")))

namespace rehearsal {

// A fault, "call:nth[:number]": the nth call of that function in the process, counted from 1. The number is an error code of the vendor, or
// milliseconds for `slow`. A list of faults has commas between.
struct Fault {
  std::string call;
  unsigned long nth = 0;
  int number = 0;
};

struct Settings {
  int devices = 1;
  size_t memory = size_t{1} << 30;  // bytes of a device
  size_t pinned = 0;                // bytes of host memory that a process can register; 0: any number
  int queues = 1;                   // hardware queues of a device
  size_t queue_depth = 256;         // items that a queue holds; a call that submits one more waits
  bool locking = true;          // devices have a lock; calls that allocate or free hold the lock until the device is idle
  bool same_address = false;    // registered host memory has the host's address on the device
  bool own_mapping = false;     // the engine reaches registered shared memory by a mapping of its own
  bool scribble = true;         // a copy's destination holds a pattern until the data comes
  double copy_gbps = 0;         // 10^9 bytes a second, inside a device; 0: as fast as memcpy
  double copy_out_gbps = 0;     // from a device to the host; not set: copy_gbps
  double copy_in_gbps = 0;      // from the host to a device; not set: copy_gbps
  double fabric_gbps = 0;       // between the ranks of a communicator; 0: as fast as memcpy
  long latency_us = 0;          // before every item that is no mark
  long gate_us = 0;             // from a value in memory to the end of the wait for that value
  long jitter_us = 50;          // at most, before about every fourth item
  unsigned long seed = 1;       // of the jitter
  bool abort_on_misuse = true;  // else the call returns an error
  bool quiet = false;           // no line on stderr about the simulation
  std::string trace;            // a file: at exit the process appends a line of JSON with its calls
  std::string meet;             // the file of a network namespace, in which ranks meet; empty: the process's own
  int nccl_version = 0;         // as ncclGetVersion gives it; 0: the library's own
  long nccl_group_ms = 0;       // from the end of a group to its work, where a communicator in it does not block
  // fail: the call returns the code. fail_for_good: and so do later calls on the device. fail_late: the call's work fails on the stream.
  // hang: the work does not end. slow: the work begins later.
  std::vector<Fault> fail, fail_for_good, fail_late, hang, slow;
};

REHEARSAL_API const Settings &settings();

// What a vendor's own variable says of the number of hardware queues: hardware_queues() is at most that from now on. `name` is the variable's
// whole name. To be called before there is a device. What is not a number from 1 on counts for nothing, as with the vendors.
REHEARSAL_API void limit_queues(const char *name);
// Of a device: REHEARSAL_QUEUES, and no more than the vendors' own variables say.
REHEARSAL_API int hardware_queues();

// Whether a variable is set and not 0. For switches of one vendor; `name` is the variable's whole name.
REHEARSAL_API bool switched_on(const char *name);

}  // namespace rehearsal
