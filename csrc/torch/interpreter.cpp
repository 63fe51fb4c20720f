#include "interpreter.hpp"

#include <cxxabi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <isthmus/isthmus.h>

namespace isthmus::torch_face::interpreter {

namespace {

int check() { return interrupted() ? 1 : 0; }

}  // namespace

void install_interrupt_check() { isthmus_set_interrupt_check(check); }

bool interrupted() noexcept {
  // The kernel's main thread is Python's, also in a forked child. Others never take the GIL here.
  if (::syscall(SYS_gettid) != ::getpid() || !Py_IsInitialized()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;  // the exception stays set in this thread, for raise_interrupt
  PyGILState_Release(state);
  return raised;
}

void raise_interrupt() {
  const pybind11::gil_scoped_acquire gil;
  if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw pybind11::error_already_set();
}

// Where the interpreter ends meanwhile, Python before 3.14 ends a thread that asks for the GIL, by pthread_exit. That would unwind through this
// destructor, and through objects that may be let go of under the GIL alone. So the thread stays here until the process has ended.
WithoutGil::~WithoutGil() {
  try {
    if (released_) PyEval_RestoreThread(released_);
  } catch (abi::__forced_unwind &) {
    for (;;) ::pause();
  }
}

}  // namespace isthmus::torch_face::interpreter
