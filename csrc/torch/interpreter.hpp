// The only part that talks to the Python interpreter: Ctrl-C while a call blocks, and the GIL around what may block.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>

namespace isthmus::torch_face::interpreter {

// Installs the interrupt check of the whole process (isthmus_set_interrupt_check).
void install_interrupt_check();

// True if a Python signal handler raised. Only the main thread runs handlers; elsewhere this is always false. Takes the GIL.
bool interrupted() noexcept;

// Throws what the handler raised; KeyboardInterrupt if that is gone. Called after ISTHMUS_ERR_INTERRUPTED or interrupted().
[[noreturn]] void raise_interrupt();

// Lets other Python threads run while this one may block. c10d's own bindings have mostly done that before; this covers the rest.
class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

}  // namespace isthmus::torch_face::interpreter
