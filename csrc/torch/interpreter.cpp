#include "interpreter.hpp"

#include <cxxabi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <frameobject.h>
#include <isthmus/isthmus.h>

namespace isthmus::torch_face::interpreter {

namespace {

int check() { return interrupted() ? 1 : 0; }

constinit thread_local bool raised_and_not_thrown = false;

}  // namespace

void install_interrupt_check() { isthmus_set_interrupt_check(check); }

bool interrupted() noexcept {
  // The kernel's main thread is Python's, also in a forked child. Others never take the GIL here.
  if (::syscall(SYS_gettid) != ::getpid() || !Py_IsInitialized()) return false;
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;  // the exception stays set in this thread, for raise_interrupt
  PyGILState_Release(state);
  if (raised) raised_and_not_thrown = true;
  return raised;
}

void raise_if_interrupted() {
  if (!raised_and_not_thrown) return;
  const pybind11::gil_scoped_acquire gil;
  raised_and_not_thrown = false;
  if (PyErr_Occurred()) throw pybind11::error_already_set();
}

void raise_interrupt() {
  const pybind11::gil_scoped_acquire gil;
  raised_and_not_thrown = false;
  if (!PyErr_Occurred()) PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw pybind11::error_already_set();
}

namespace {

// Calls `body` under the GIL, and leaves an exception of Python's that is set as it is. See ~WithoutGil() for the interpreter's end.
template <class Body>
void with_gil(Body body) noexcept {
  if (!Py_IsInitialized()) return;
  try {
    const pybind11::gil_scoped_acquire gil;
    const pybind11::error_scope kept;
    body();
    PyErr_Clear();
  } catch (abi::__forced_unwind &) {
    for (;;) ::pause();
  }
}

PyObject *generator_of(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetGenerator(frame);
#else
  Py_XINCREF(frame->f_gen);
  return frame->f_gen;
#endif
}

}  // namespace

Generator Generator::calling() noexcept {
  Generator found;
  with_gil([&] {
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (!frame) return;
    PyObject *generator = generator_of(frame);
    Py_DECREF(frame);
    if (generator && PyGen_CheckExact(generator)) found.weak_ = PyWeakref_NewRef(generator, nullptr);
    Py_XDECREF(generator);
  });
  return found;
}

bool Generator::over() const noexcept {
  bool over = false;
  if (weak_)
    with_gil([&] {
      PyObject *generator = PyObject_CallNoArgs(weak_);
      PyObject *frame = generator && generator != Py_None ? PyObject_GetAttrString(generator, "gi_frame") : nullptr;
      over = generator == Py_None || frame == Py_None;
      Py_XDECREF(frame);
      Py_XDECREF(generator);
    });
  return over;
}

void Generator::let_go() noexcept {
  with_gil([this] { Py_CLEAR(weak_); });
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
