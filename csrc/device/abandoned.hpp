// Some calls of vendors may never come back: the device hangs, or a peer does not come, and no call ends them. The thread in
// such a call is left behind.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "base/error.hpp"

namespace isthmus::device {

size_t abandoned_threads() noexcept;  // how many there have been in this process
int threads_left_behind() noexcept;   // how many of abandon_thread() have not come out

// Counts one more. A vendor's destructors would run into a thread that is still in the vendor's library. So a process with
// such a thread ends without destructors.
void abandon_thread() noexcept;
void abandoned_thread_is_back() noexcept;  // the thread has come out after all

// Counts one more, which is in no library whose destructors matter.
void count_abandoned_thread() noexcept;

// Keeps memory for good that a hanging device may still reach. Null: nothing is kept.
void keep_for_good(void *memory) noexcept;

// Makes the call on a separate thread, which takes no signals of the program's. Waits at most `seconds` for the result, without
// those in which this process was stopped. No result: the call has not come back. Then the separate thread is left behind, and
// calls `back` if the call ever comes back. Objects that `call` and `back` hold live as long. Where no thread can be had, this
// thread makes the call. `enough` is asked now and then, and ends the wait early.
std::optional<Status> call_within(double seconds, std::function<Status()> call, std::function<void()> back = nullptr,
                                  const std::function<bool()> &enough = nullptr);

}  // namespace isthmus::device
