// The dtype of Isthmus that an array's elements have. NumPy, torch, the buffer protocol and the CUDA array interface each
// have names or numbers of their own for the dtypes. All functions need the GIL.
#pragma once

#include <Python.h>

#include <string>

#include "isthmus/isthmus.h"

namespace isthmus::python {

// "float32" -> ISTHMUS_FLOAT32. Also takes "torch.float32" and "<class 'numpy.float32'>". False where Isthmus has no such
// dtype.
bool dtype_from_name(const char *name, isthmus_dtype *out) noexcept;
// A dtype argument: a name, a numpy or torch dtype, or a scalar class. False with a Python error.
bool dtype_from_object(PyObject *object, const char *call, isthmus_dtype *out);
// The dtype of a NumPy array whose descriptor has this type number. False without a Python error where Isthmus has no such
// dtype.
bool dtype_from_numpy(PyObject *array, int number, isthmus_dtype *out);
// The dtype of a torch tensor. `attribute` is the interned string "dtype". False where Isthmus has no such dtype, or with a
// Python error.
bool dtype_from_torch(PyObject *tensor, PyObject *attribute, isthmus_dtype *out);
// A struct-module format of one native element, as the buffer protocol gives it.
bool dtype_from_format(const char *format, Py_ssize_t itemsize, isthmus_dtype *out);
// The CUDA array interface's name of a dtype, as "<f4".
bool dtype_from_typestr(const char *text, isthmus_dtype *out);

// Two texts for messages. Both functions clear the Python error.
std::string text_of(PyObject *object);  // str(object), "" where that fails
std::string attribute_text(PyObject *object, const char *name);

}  // namespace isthmus::python
