// What the program may hear of, and be asked, while it waits in a call. Any thread.
#pragma once

namespace isthmus::engine {

// `check` is asked now and then by a thread that waits: not 0 means that the program wants to stop (a signal in Python). Null: nobody is.
void set_interrupt_check(int (*check)()) noexcept;
bool interrupt_wanted() noexcept;

// `hook` is called, on any thread, where an operation has met its deadline, on this rank or another. Must be short; null: nothing is.
void set_late_hook(void (*hook)()) noexcept;
void call_late_hook() noexcept;

}  // namespace isthmus::engine
