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

// After a call of the library that may have asked, whatever came of the call: throws the exception that a handler raised and nobody
// threw yet. An operation may end in the moment in which a handler raises.
void raise_if_interrupted();

// A generator: that of torch's _coalescing_manager is over when the `with` block is, also where an exception ended the block.
// Held weakly. A copy is the same hold, and one of the copies lets go.
class Generator {
 public:
  static Generator calling() noexcept;  // whose code has made this call; none: no generator's
  bool over() const noexcept;           // false of none
  bool any() const noexcept { return weak_ != nullptr; }
  void let_go() noexcept;

 private:
  PyObject *weak_ = nullptr;
};

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
