// Vendors' calls that may never come back, because the device hangs or a peer does not come, and have no call that ends them: their threads are
// left behind.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>

#include "base/error.hpp"

namespace isthmus::device {

size_t abandoned_threads() noexcept;  // how many there have been

// One more. A vendor's destructors would run into a thread that is still in its library, so a process in which there is one ends without
// destructors.
void abandon_thread() noexcept;
void abandoned_thread_is_back() noexcept;  // it has come out after all

// One more that is stuck in nothing whose end matters.
void count_abandoned_thread() noexcept;

// What a device that hangs may still reach stays for good: it is kept here, not lost. Null: nothing.
void keep_for_good(void *memory) noexcept;

// Makes the call on a thread of its own, which takes no signals of the program's, and waits so long for it. Nothing: it has not come back; its
// thread is left behind, and says `back` if it ever does. What the two hold lives as long. Where no thread can be had the call is made here.
// `enough`, asked now and then, ends the wait before.
std::optional<Status> call_within(double seconds, std::function<Status()> call, std::function<void()> back = nullptr,
                                  const std::function<bool()> &enough = nullptr);

}  // namespace isthmus::device
