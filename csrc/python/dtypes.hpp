// Which dtype of Isthmus an array's elements have, by the names and numbers that NumPy, torch, the buffer protocol and the CUDA array
// interface have for it. All functions need the GIL.
#pragma once

#include <Python.h>

#include <string>

#include "isthmus/isthmus.h"

namespace isthmus::python {

// "float32" -> ISTHMUS_FLOAT32; false where the name is none of ours. Also takes "torch.float32" and "<class 'numpy.float32'>" names.
bool dtype_from_name(const char *name, isthmus_dtype *out) noexcept;
// A dtype argument: a name, a numpy or torch dtype, or a scalar class. False with a Python error.
bool dtype_from_object(PyObject *object, const char *call, isthmus_dtype *out);
// Of a NumPy array whose descriptor has that type number. False without an error where Isthmus does not carry the type.
bool dtype_from_numpy(PyObject *array, int number, isthmus_dtype *out);
// Of a torch tensor; `attribute` is the interned string "dtype". False where Isthmus does not carry the type, or with a Python error.
bool dtype_from_torch(PyObject *tensor, PyObject *attribute, isthmus_dtype *out);
// A struct-module format of one native element, as the buffer protocol gives it.
bool dtype_from_format(const char *format, Py_ssize_t itemsize, isthmus_dtype *out);
// "<f4" and its like, as the CUDA array interface has them.
bool dtype_from_typestr(const char *text, isthmus_dtype *out);

// For messages; both clear the error.
std::string text_of(PyObject *object);  // str(object), "" where that fails
std::string attribute_text(PyObject *object, const char *name);

}  // namespace isthmus::python
