// From isthmus_result to the exceptions of isthmus._errors, and Ctrl-C. Everything here needs the GIL unless it says otherwise.
#pragma once

#include <pybind11/pybind11.h>

#include "isthmus/isthmus.h"

namespace isthmus::python {

namespace py = pybind11;

// Raised by C++ code after a Python error was set: crosses pybind11 as it is.
using PythonError = py::error_already_set;

// Sets the exception of `result` with the text "what: text" (`what` may be NULL) and returns NULL, for use as `return raise(..)`. For
// ISTHMUS_ERR_INTERRUPTED the exception that the signal handler left (KeyboardInterrupt) is kept.
PyObject *raise(isthmus_result result, const char *text);
PyObject *raise_last(isthmus_result result);  // with isthmus_last_error() of this thread
PyObject *raise_argument(const char *format, ...) __attribute__((format(printf, 1, 2)));     // ArgumentError
PyObject *raise_unsupported(const char *format, ...) __attribute__((format(printf, 1, 2)));  // UnsupportedError

// For code in pybind11 style: throws where `result` is not ISTHMUS_OK.
void check(isthmus_result result);
// The exception as an object, not raised.
py::object make_error(isthmus_result result, const char *text);

// Installs the interrupt check: a blocking call of the main thread runs Python's signal handlers about every 50 ms, and one that
// raises ends the call.
void install_interrupt_check();
// The interrupt check is running signal handlers on this thread, inside a blocking call. Needs no GIL.
bool inside_signal_handler() noexcept;

// Releases the GIL for a call into the library. The library's threads never wait for the GIL while they hold a lock, but the interrupt check
// does. So EVERY call that may take the library's locks is made without the GIL.
class NoGil {
 public:
  NoGil() noexcept : state_(PyEval_SaveThread()) {}
  ~NoGil() { PyEval_RestoreThread(state_); }
  NoGil(const NoGil &) = delete;
  NoGil &operator=(const NoGil &) = delete;

 private:
  PyThreadState *state_;
};

}  // namespace isthmus::python
