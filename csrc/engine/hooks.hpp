// Hooks of the program. The engine asks the program, and tells the program something, while the program waits in a call. Any thread.
#pragma once

namespace isthmus::engine {

// `hook` is called, on any thread, where an operation has met its deadline, on this rank or another. `hook` must be short. Null: nothing is called.
void set_late_hook(void (*hook)()) noexcept;
void call_late_hook() noexcept;

}  // namespace isthmus::engine
