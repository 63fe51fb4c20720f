// What the calling thread asks of the system while operations run: system calls other than futex and sched_yield, and heap
// allocations of the whole process. For `isthmus-bench --steady`.
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
// Between the two, the calling thread's calls are counted. The first start installs a filter that stays for the life of the
// thread, and makes its later system calls slow. Throws std::runtime_error.
void steady_start();
SteadyCounts steady_stop();

}  // namespace isthmus::bench
