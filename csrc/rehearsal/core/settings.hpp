// What the environment says about the simulated machine. Read once, at the first call of any simulated library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#define REHEARSAL_API __attribute__((visibility("default")))

namespace rehearsal {

// "call:nth[:number]": the nth call of that function, counted from 1. The number is a vendor's code, or milliseconds.
struct Fault {
  std::string call;
  unsigned long nth = 0;
  int number = 0;
};

struct Settings {
  int devices = 1;
  size_t memory = size_t{1} << 30;  // bytes a device
  size_t pinned = 0;                // bytes of host memory that a process can register; 0: any number
  int queues = 1;                   // hardware queues a device
  size_t queue_depth = 256;
  bool locking = true;        // allocation and free hold the device's lock until it is idle
  bool same_address = false;  // registered host memory has its own address on the device
  bool own_mapping = false;   // registered shared memory is reached by a mapping of the engine's own
  bool scribble = true;       // a copy's destination holds a pattern until the data comes
  double copy_gbps = 0;       // inside a device; 0: as fast as memcpy
  double copy_out_gbps = 0;   // from a device to the host; unless given as copy_gbps
  double copy_in_gbps = 0;    // from the host to a device; the same
  double fabric_gbps = 0;
  long latency_us = 0;  // of every item
  long gate_us = 0;     // until a wait for a value goes on, once the value is there
  long jitter_us = 50;  // of every fourth or so
  unsigned long seed = 1;
  bool abort_on_misuse = true;
  bool quiet = false;
  std::string trace;
  std::string meet;      // a network namespace's file
  int nccl_version = 0;  // as ncclGetVersion gives it; 0: its own
  std::vector<Fault> fail, fail_for_good, fail_late, hang, slow;
};

REHEARSAL_API const Settings &settings();

// A switch that only one skin has.
REHEARSAL_API bool switched_on(const char *name);

}  // namespace rehearsal
