// Counts, for `isthmus-bench --steady`, while operations run: the calling thread's system calls other than futex and
// sched_yield, and the heap allocations of the whole process.
#pragma once

#include <cstdint>
#include <string>

namespace isthmus::bench {

struct SteadyCounts {
  uint64_t system_calls = 0;           // of the calling thread, without futex and sched_yield
  uint64_t allocations = 0;            // of the calling thread
  uint64_t allocations_elsewhere = 0;  // of the process's other threads
  std::string system_call_numbers;     // "1 x12, 202 x3": which ones, for a reader with a table
};

// False where the processor, the kernel or a sanitizer does not let calls be counted.
bool steady_supported();
// The calling thread's calls are counted between the two functions. The first start installs a filter, which stays as long
// as the thread lives, and makes the thread's later system calls slow. Throws std::runtime_error.
void steady_start();
SteadyCounts steady_stop();

}  // namespace isthmus::bench
