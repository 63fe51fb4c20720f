#include "errors.hpp"

#include <cxxabi.h>
#include <pthread.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

namespace isthmus::python {
namespace {

// The class for each isthmus_result, by its name in isthmus._errors.
constexpr const char *kClasses[] = {
    "Error",         "ArgumentError",    "ConfigError",      "MismatchError", "TimeoutError",
    "PeerLostError", "AbortedError",     "ResourceError",    "SystemError",   "AuthError",
    "ForkedError",   "InterruptedError", "UnsupportedError", "InternalError", "InternalError",
    "DeviceError"};
constexpr int kClassCount = sizeof(kClasses) / sizeof(kClasses[0]);

PyObject *class_of(isthmus_result result) {  // borrowed; kept for the life of the process
  static PyObject *classes[kClassCount] = {};
  const int i = result >= 0 && result < kClassCount ? result : 0;
  if (!classes[i]) {
    PyObject *module = PyImport_ImportModule("isthmus._errors");
    if (!module) return nullptr;
    classes[i] = PyObject_GetAttrString(module, kClasses[i]);
    Py_DECREF(module);
  }
  return classes[i];
}

PyObject *raise_text(isthmus_result result, const char *format, va_list arguments) {
  va_list again;
  va_copy(again, arguments);
  const int length = std::vsnprintf(nullptr, 0, format, arguments);
  std::string text(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  return raise(result, text.c_str());
}

unsigned long main_thread = 0;
thread_local int handler_depth = 0;

int interrupt_check() {                                                     // without the GIL, on the thread that waits
  if (static_cast<unsigned long>(pthread_self()) != main_thread) return 0;  // only the main thread runs signal handlers
  const PyGILState_STATE state = PyGILState_Ensure();
  ++handler_depth;
  const int raised = PyErr_CheckSignals();
  --handler_depth;
  PyGILState_Release(state);  // the exception stays with this thread's state until raise() finds it
  return raised;
}

}  // namespace

PyObject *raise(isthmus_result result, const char *text) {
  if (PyErr_Occurred()) return nullptr;
  PyObject *type = class_of(result);
  if (type) PyErr_SetString(type, text && *text ? text : isthmus_result_name(result));
  return nullptr;
}

std::vector<int> last_ranks() {
  std::vector<int> ranks(static_cast<size_t>(isthmus_last_error_ranks(nullptr, 0)));
  isthmus_last_error_ranks(ranks.data(), static_cast<int>(ranks.size()));
  return ranks;
}

PyObject *raise(const py::object &error) {
  if (!PyErr_Occurred()) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  return nullptr;
}

PyObject *raise_last(isthmus_result result) {
  if (PyErr_Occurred()) return nullptr;
  const std::vector<int> ranks = last_ranks();
  return ranks.empty() ? raise(result, isthmus_last_error()) : raise(make_error(result, isthmus_last_error(), ranks));
}

PyObject *raise_argument(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  raise_text(ISTHMUS_ERR_ARGUMENT, format, arguments);
  va_end(arguments);
  return nullptr;
}

PyObject *raise_unsupported(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  raise_text(ISTHMUS_ERR_UNSUPPORTED, format, arguments);
  va_end(arguments);
  return nullptr;
}

void check(isthmus_result result) {
  if (result == ISTHMUS_OK) return;
  raise_last(result);
  throw PythonError();
}

py::object make_error(isthmus_result result, const char *text, const std::vector<int> &ranks) {
  PyObject *type = class_of(result);
  if (!type) throw PythonError();
  py::object error = py::reinterpret_borrow<py::object>(type)(text && *text ? text : isthmus_result_name(result));
  if (!ranks.empty()) error.attr("ranks") = py::tuple(py::cast(ranks));
  return error;
}

void install_interrupt_check() {
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  isthmus_set_interrupt_check(interrupt_check);
}

// Where the interpreter ends meanwhile, Python before 3.14 ends a thread that asks for the GIL, by pthread_exit. That would unwind through this
// destructor, and through objects that may be let go of under the GIL alone. So the thread stays here until the process has ended.
NoGil::~NoGil() {
  try {
    PyEval_RestoreThread(state_);
  } catch (abi::__forced_unwind &) {
    for (;;) ::pause();
  }
}

bool inside_signal_handler() noexcept { return handler_depth > 0; }

}  // namespace isthmus::python
