// The only part that talks to the Python interpreter: Ctrl-C while a call blocks, and the GIL around what may block.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace isthmus::torch_face::interpreter {

// Installs the interrupt check of the whole process (isthmus_set_interrupt_check).
void install_interrupt_check();

// Whether a Python signal handler raised. Only the main thread runs handlers: on other threads the answer is always false.
// Takes the GIL.
bool interrupted() noexcept;

// Throws the exception that the handler raised; KeyboardInterrupt if that exception is gone. Called after
// ISTHMUS_ERR_INTERRUPTED or interrupted().
[[noreturn]] void raise_interrupt();

// Releases the GIL while this thread may block, where the thread holds the GIL. Most of c10d's bindings have released the
// GIL already.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_ = PyEval_SaveThread();
  }
  ~WithoutGil();
  WithoutGil(const WithoutGil &) = delete;
  WithoutGil &operator=(const WithoutGil &) = delete;

 private:
  PyThreadState *released_ = nullptr;
};

}  // namespace isthmus::torch_face::interpreter
