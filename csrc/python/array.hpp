// An array argument: where its elements lie, how many and of which type. Read from numpy.ndarray and torch.Tensor by the shortest
// way, else through DLPack, else through the buffer protocol. All functions need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

#include "isthmus/isthmus.h"

namespace isthmus::python {

enum class Access : bool { Read, Write };

class Array {
 public:
  Array() = default;
  Array(Array &&other) noexcept { *this = static_cast<Array &&>(other); }
  Array &operator=(Array &&other) noexcept;
  ~Array() { Py_XDECREF(keep_); }

  // False with a Python error that names `call` and `argument`. `source` must outlive this object unless hold() is called.
  bool read(PyObject *source, const char *call, const char *argument, Access access);
  // Keeps the memory alive for as long as this object lives, also when the caller drops its references.
  void hold();
  explicit operator bool() const noexcept { return source_ != nullptr; }

  void *data = nullptr;
  uint64_t count = 0;  // elements
  isthmus_dtype dtype = ISTHMUS_UINT8;
  bool device = false;     // memory of a device
  bool on_stream = false;  // its owner gave the stream that it is ready behind
  void *stream = nullptr;
  void *at(uint64_t element) const noexcept { return static_cast<char *>(data) + element * isthmus_dtype_size(dtype); }
  uint64_t bytes() const noexcept { return count * isthmus_dtype_size(dtype); }
  PyObject *source() const noexcept { return source_; }  // borrowed

 private:
  bool read_numpy(PyObject *source, const char *call, const char *argument, Access access);
  bool read_cuda(PyObject *source, const char *call, const char *argument, Access access);
  bool read_torch(PyObject *source, const char *call, const char *argument);
  bool read_dlpack(PyObject *source, const char *call, const char *argument, Access access);
  bool read_buffer(PyObject *source, const char *call, const char *argument, Access access);

  PyObject *source_ = nullptr;  // what the caller passed; borrowed until hold(), owned then through keep_
  PyObject *keep_ = nullptr;    // owned: a memoryview, a DLPack capsule, or the source itself
  bool held_ = false;           // keep_ is enough to keep the memory alive without the caller
};

// "float32" -> ISTHMUS_FLOAT32; false where the name is none of ours. Also takes "torch.float32" and "<class 'numpy.float32'>" names.
bool dtype_from_name(const char *name, isthmus_dtype *out) noexcept;
// A dtype argument: a name, a numpy or torch dtype, or a scalar class. False with a Python error.
bool dtype_from_object(PyObject *object, const char *call, isthmus_dtype *out);

}  // namespace isthmus::python
