// Which threads are the context's own: the control thread, the progress thread and the device workers. The last reference to the context
// may fall on one of them, and a thread cannot join itself (Context::acquire).
#pragma once

namespace isthmus::process {

void enter_context_thread() noexcept;  // this thread is one of them from now on
bool on_context_thread() noexcept;

}  // namespace isthmus::process
