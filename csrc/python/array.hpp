// An array argument: where its elements lie, how many there are, and of which type. numpy.ndarray and torch.Tensor are read
// by the shortest way. Other objects are read through the buffer protocol, the CUDA array interface or DLPack. All functions
// need the GIL.
#pragma once

#include <Python.h>

#include <cstdint>

#include "isthmus/isthmus.h"

namespace isthmus::python {

enum class Access : bool { Read, Write };

// The call that arrays are read for. Where the caller has named no stream, arrays on a device decide on which stream the
// call stands.
struct PythonCall {
  explicit PythonCall(const char *name) noexcept : call(name) {}
  const char *call;  // the call's name, for messages
  isthmus_comm_t handle = nullptr;
  isthmus_call options = ISTHMUS_CALL_INIT;
  uint64_t factor = 1;  // options.factor points here, where the factor is a whole number
  bool has_options = false;
  bool named = false;       // the caller gave stream=
  bool by_default = false;  // the call stands on the default stream, because an array is ready there

  const isthmus_call *call_options() const noexcept { return has_options ? &options : nullptr; }
  void stand_on(void *stream) noexcept {
    options.stream = stream;
    options.on_stream = ISTHMUS_STREAM_BOTH;
    options.size = sizeof options;
    has_options = true;
  }
  void keep_output(bool commits) noexcept {  // for the case that the operation fails, here or anywhere
    options.keep = 1;
    options.commit = commits;
    options.size = sizeof options;
    has_options = true;
  }
  // Notes that an array, which the call reads or writes, lies on a device by its own word.
  void claims_device(bool written) noexcept {
    const auto claim = written ? ISTHMUS_MEMORY_RECV : ISTHMUS_MEMORY_SEND;
    options.device_memory = static_cast<isthmus_memory_claim>(options.device_memory | claim);
    options.size = sizeof options;
    has_options = true;
  }
  // Takes note of an array that is ready behind `stream`. Where the caller has named a stream, the named stream waits for
  // `stream`, and nobody waits on the host. Else the call stands on `stream`. False with a Python error: another array is
  // ready behind another stream.
  bool join(void *stream, const char *argument);
  bool order_behind(void *stream, const char *argument);  // the stream that the caller has named waits for `stream`
  bool join_default(int64_t number,
                    const char *argument);  // the default stream, by the number that DLPack has for it; -1: none
};

class Array {
 public:
  Array() = default;
  Array(Array &&other) noexcept { *this = static_cast<Array &&>(other); }
  Array &operator=(Array &&other) noexcept;
  ~Array() { drop(); }

  // False with a Python error that names the call and `argument`. `source` must outlive this object unless hold() is called.
  bool read(PyObject *source, PythonCall &call, const char *argument, Access access);
  // Keeps the memory alive as long as this object lives, also when the caller drops its references.
  void hold();
  explicit operator bool() const noexcept { return source_ != nullptr; }

  void *data = nullptr;
  uint64_t count = 0;  // elements
  isthmus_dtype dtype = ISTHMUS_UINT8;
  void *at(uint64_t element) const noexcept { return static_cast<char *>(data) + element * isthmus_dtype_size(dtype); }
  uint64_t bytes() const noexcept { return count * isthmus_dtype_size(dtype); }

 private:
  bool read_numpy(PyObject *source, const char *call, const char *argument, Access access);
  bool read_cuda(PyObject *source, PythonCall &call, const char *argument, Access access);
  bool read_torch(PyObject *source, PythonCall &call, const char *argument, Access access);
  bool read_dlpack(PyObject *source, PythonCall &call, const char *argument, Access access);
  bool read_capsule(PyObject *source, PythonCall &call, const char *argument, Access access);
  bool view(PyObject *source);  // reads by the buffer protocol; false without a Python error where the object refuses
  bool read_buffer(const char *call, const char *argument, Access access);

  void drop() noexcept;

  PyObject *source_ = nullptr;  // the object that the caller passed: borrowed; after hold() owned through keep_
  PyObject *keep_ = nullptr;    // owned: a memoryview, a DLPack capsule, or the source itself
  bool held_ = false;           // whether keep_ alone keeps the memory alive, without the caller
};

}  // namespace isthmus::python
