// The operations as methods of Comm. The methods are plain CPython functions with METH_FASTCALL, set on the pybind11 class.
// A call through pybind11's dispatcher costs about a microsecond more: as much as a whole all_reduce of eight bytes.
#pragma once

#include <Python.h>

#include "arguments.hpp"
#include "array.hpp"
#include "communicator.hpp"
#include "work.hpp"

namespace isthmus::python {

extern PyMethodDef kCollectives[];   // collectives.cpp: equal counts, send, recv, barrier
extern PyMethodDef kCollectivesV[];  // collectives_v.cpp: collectives with a count for each rank

// The beginning of every operation: its communicator, and the options that all operations take.
struct OperationCall : PythonCall {
  using PythonCall::PythonCall;
  PythonCommunicator *communicator = nullptr;
  PyObject *self = nullptr;
  bool async_op = false;

  // False with a Python error.
  bool open(PyObject *self_object, PyObject *async_value, PyObject *timeout, PyObject *stream, PyObject *keep = nullptr,
            PyObject *commit = nullptr);
  // Reads the factor of PREMUL_SUM. That op needs a factor; every other op refuses one. False with a Python error.
  bool scale(PyObject *by, isthmus_redop op);
};

// Calls `start(isthmus_work_t *)` without the GIL. `result` is borrowed. NULL with a Python error. Else returns
// - `result`, of a blocking call; in a group the group then holds `arrays`;
// - a Work that holds `arrays` and gives `result`, of an asynchronous call.
template <class Start>
PyObject *run(OperationCall &launch, PyObject *result, Start &&start, Array *const *arrays, size_t array_count) {
  isthmus_work_t work = nullptr;
  isthmus_result outcome;
  sweep_orphans();
  {
    const PythonCommunicator::ActiveCall use(launch.communicator);
    {
      NoGil nogil;
      outcome = start(launch.async_op ? &work : nullptr);
    }
    if (outcome != ISTHMUS_OK) return raise_last(outcome);
    if (PyErr_Occurred() && !work) return nullptr;  // Ctrl-C while the operation ended
  }
  CallGroup &group = this_thread_group();
  if (!launch.async_op && group.depth == 0) return Py_NewRef(result);
  // From here on the operation may be running. So the arrays must be held before anything below may fail.
  std::vector<Array> held;
  for (size_t i = 0; i < array_count; ++i) {
    arrays[i]->hold();
    if (*arrays[i]) held.push_back(std::move(*arrays[i]));
  }
  const auto owner = py::reinterpret_borrow<py::object>(launch.self);
  if (!launch.async_op) {
    for (auto &array : held) group.held.arrays.push_back(std::move(array));
    group.communicators.push_back(owner);
    return Py_NewRef(result);
  }
  auto *object = new Work(work, HeldArrays{std::move(held), owner}, py::reinterpret_borrow<py::object>(result));
  return py::cast(object, py::return_value_policy::take_ownership).release().ptr();
}

template <class Start, class... Arrays>
PyObject *submit(OperationCall &launch, PyObject *result, Start &&start, Arrays &...arrays) {
  if constexpr (sizeof...(Arrays) == 0) {
    return run(launch, result, start, nullptr, 0);
  } else {
    Array *const list[] = {&arrays...};
    return run(launch, result, start, list, sizeof...(Arrays));
  }
}

// A new array of the kind of `like` (NumPy or torch), made by isthmus._arrays.<function>(like, extra). NULL with a Python
// error, as for any other kind.
PyObject *new_array(const char *function, PyObject *like, long long extra);

// Checks of counts and dtypes. False with an ArgumentError.
bool same_dtype(const char *call, const Array &a, const char *a_name, const Array &b, const char *b_name);
bool exact_count(const char *call, const Array &array, const char *name, uint64_t expected, const char *why);
// Whether x and out are apart, or exactly the same memory. Any other overlap would destroy data before the data is read.
bool disjoint_or_same(const char *call, const Array &in, const Array &out, const char *why);
bool in_world(const char *call, const char *name, int rank, int world);

}  // namespace isthmus::python
