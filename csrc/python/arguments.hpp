// Reads the arguments of a METH_FASTCALL | METH_KEYWORDS function, without a tuple, a dict or an allocation. NULL stands for
// an optional argument that was not given, or was None.
#pragma once

#include <Python.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "errors.hpp"

namespace isthmus::python {

constexpr int kMaxArguments = 12;

// The names of the arguments, in order. The first `positional` may be given by position. The first `required` must be given.
class Signature {
 public:
  template <size_t N>
  Signature(const char *function, int required, int positional, const char *const (&names)[N])
      : function_(function), required_(required), positional_(positional), count_(static_cast<int>(N)) {
    static_assert(N <= kMaxArguments);
    for (size_t i = 0; i < N; ++i) names_[i] = PyUnicode_InternFromString(names[i]);
  }

  const char *function() const noexcept { return function_; }

  // Fills values[0..count). False with a TypeError that reads like Python's own.
  bool parse(PyObject *const *arguments, Py_ssize_t given, PyObject *keywords, PyObject **values) const {
    for (int i = 0; i < count_; ++i) values[i] = nullptr;
    if (given > positional_) {
      PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments, %zd were given", function_, positional_,
                   given);
      return false;
    }
    for (Py_ssize_t i = 0; i < given; ++i) values[i] = arguments[i];
    const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
    for (Py_ssize_t k = 0; k < named; ++k) {
      PyObject *name = PyTuple_GET_ITEM(keywords, k);
      int at = 0;
      while (at < count_ && names_[at] != name) ++at;
      if (at == count_)  // a name that was made at run time is another object than the interned one: compare the text
        for (at = 0; at < count_ && PyUnicode_Compare(names_[at], name) != 0;) ++at;
      if (at == count_) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", function_, name);
        return false;
      }
      if (at < given) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", function_, name);
        return false;
      }
      values[at] = arguments[given + k];
    }
    for (int i = 0; i < required_; ++i) {
      if (!values[i]) {
        PyErr_Format(PyExc_TypeError, "%s() needs the argument '%U'", function_, names_[i]);
        return false;
      }
    }
    for (int i = required_; i < count_; ++i)
      if (values[i] == Py_None) values[i] = nullptr;
    return true;
  }

 private:
  const char *function_;
  int required_, positional_, count_;
  PyObject *names_[kMaxArguments];
};

// A time in seconds, more than 0. Infinity becomes the longest time that the library knows. NULL or None: *out is untouched.
inline bool read_timeout(PyObject *object, const char *call, double *out) {
  if (!object || object == Py_None) return true;
  const double seconds = PyFloat_AsDouble(object);
  if (seconds == -1.0 && PyErr_Occurred()) return false;
  if (!(seconds > 0)) {
    raise_argument("%s: timeout=%g must be more than 0 seconds", call, seconds);
    return false;
  }
  *out = std::isinf(seconds) ? 1e9 : seconds;
  return true;
}

// A number that fits into an int. NULL: *out is untouched.
inline bool read_int(PyObject *object, const char *call, const char *argument, int *out) {
  if (!object) return true;
  const long value = PyLong_AsLong(object);
  if (value == -1 && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
  if (PyErr_Occurred() || value < INT32_MIN || value > INT32_MAX) {
    PyErr_Clear();
    raise_argument("%s: %s is out of range", call, argument);
    return false;
  }
  *out = static_cast<int>(value);
  return true;
}

inline bool read_truth(PyObject *object, bool *out) {
  if (!object) return true;
  const int value = PyObject_IsTrue(object);
  *out = value > 0;
  return value >= 0;
}

inline bool read_op(PyObject *object, const char *call, isthmus_redop *out) {
  if (!object) return true;
  static PyObject *names[ISTHMUS_REDOP_COUNT] = {};
  if (!names[0])
    for (int i = 0; i < ISTHMUS_REDOP_COUNT; ++i)
      names[i] = PyUnicode_InternFromString(isthmus_redop_name(static_cast<isthmus_redop>(i)));
  int at = 0;
  while (at < ISTHMUS_REDOP_COUNT && names[at] != object) ++at;
  if (at == ISTHMUS_REDOP_COUNT && PyUnicode_Check(object))
    for (at = 0; at < ISTHMUS_REDOP_COUNT && PyUnicode_Compare(names[at], object) != 0;) ++at;
  if (at == ISTHMUS_REDOP_COUNT) {
    PyObject *shown = PyObject_Repr(object);
    raise_argument("%s: op=%s is none of sum, avg, prod, min, max, band, bor, bxor, premul_sum", call,
                   shown ? PyUnicode_AsUTF8(shown) : "?");
    Py_XDECREF(shown);
    return false;
  }
  *out = static_cast<isthmus_redop>(at);
  return true;
}

// A sequence of `world` counts or displacements, each 0 or more.
inline bool read_counts(PyObject *object, const char *call, const char *argument, int world, std::vector<uint64_t> *out) {
  PyObject *items = PySequence_Fast(object, "");
  if (!items) {
    PyErr_Clear();
    raise_unsupported("%s: %s must be a sequence of %d integers, not %s", call, argument, world, Py_TYPE(object)->tp_name);
    return false;
  }
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(items);
  bool ok = size == world;
  if (!ok) raise_argument("%s: %s has %zd entries; it needs one for each of the %d ranks", call, argument, size, world);
  out->resize(ok ? static_cast<size_t>(size) : 0);
  for (Py_ssize_t i = 0; ok && i < size; ++i) {
    PyObject *number = PyNumber_Index(PySequence_Fast_GET_ITEM(items, i));
    ok = number != nullptr;
    if (!ok) break;
    (*out)[static_cast<size_t>(i)] = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      ok = false;
      raise_argument("%s: %s[%zd] must be from 0 to 2^64 - 1", call, argument, i);
    }
    Py_DECREF(number);
  }
  Py_DECREF(items);
  return ok;
}

}  // namespace isthmus::python
