// From isthmus_result to the exceptions of isthmus._errors, and Ctrl-C. Everything here needs the GIL unless it says
// otherwise.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "isthmus/isthmus.h"

namespace isthmus::python {

namespace py = pybind11;

// What C++ code throws after it has set a Python error. pybind11 hands the error on to Python unchanged.
using PythonError = py::error_already_set;

// Sets the exception of `result` with this text (NULL or empty: the result's name), and returns NULL, for `return
// raise(..)`. Where an exception is set already, that exception stays: after ISTHMUS_ERR_INTERRUPTED it is the signal
// handler's (KeyboardInterrupt).
PyObject *raise(isthmus_result result, const char *text);
PyObject *raise_last(isthmus_result result);  // with isthmus_last_error() and isthmus_last_error_ranks() of this thread
PyObject *raise_argument(const char *format, ...) __attribute__((format(printf, 1, 2)));     // ArgumentError
PyObject *raise_unsupported(const char *format, ...) __attribute__((format(printf, 1, 2)));  // UnsupportedError

// For code in pybind11 style: throws where `result` is not ISTHMUS_OK.
void check(isthmus_result result);
// The exception as an object, not raised, and with the ranks that it is about.
py::object make_error(isthmus_result result, const char *text, const std::vector<int> &ranks = {});
std::vector<int> last_ranks();             // isthmus_last_error_ranks() of this thread
PyObject *raise(const py::object &error);  // one that make_error has made; NULL

// Installs the interrupt check. A blocking call of the main thread then runs Python's signal handlers about every 50 ms. A
// handler that raises ends the call.
void install_interrupt_check();
// Whether the interrupt check is running signal handlers on this thread, inside a blocking call. Needs no GIL.
bool inside_signal_handler() noexcept;

// Releases the GIL for a call into the library. The interrupt check waits for the GIL on a thread that is inside the library
// and may hold locks there. So EVERY call that may take the library's locks is made without the GIL.
class NoGil {
 public:
  NoGil() noexcept : state_(PyEval_SaveThread()) {}
  ~NoGil();
  NoGil(const NoGil &) = delete;
  NoGil &operator=(const NoGil &) = delete;

 private:
  PyThreadState *state_;
};

}  // namespace isthmus::python
