#include "array.hpp"

#include <pybind11/pybind11.h>

#include <cstring>
#include <string>

#include "dlpack.hpp"
#include "dtypes.hpp"
#include "errors.hpp"

namespace isthmus::python {

namespace py = pybind11;
namespace {

// The first fields of NumPy's array and descriptor objects. The fields are part of NumPy's ABI, and the same in NumPy 1 and
// 2. So this file needs neither NumPy's headers nor its import.
struct NumpyArray {
  PyObject_HEAD char *data;
  int nd;
  Py_ssize_t *dimensions;
  Py_ssize_t *strides;
  PyObject *base;
  PyObject *descr;
  int flags;
};
struct NumpyDescr {
  PyObject_HEAD PyTypeObject *typeobj;
  char kind;
  char type;
  char byteorder;
  char former_flags;
  int type_num;
};
constexpr int kContiguous = 0x1, kWriteable = 0x400;

PyTypeObject *ndarray_type = nullptr;  // set when a call first sees NumPy loaded; never freed
PyTypeObject *tensor_type = nullptr;

bool refuse_dtype(PyObject *source, const char *call, const char *argument) {
  raise_unsupported(
      "%s: %s has dtype %s, which Isthmus does not carry; convert it to one of int8 to int64, uint8 to uint64, bool, "
      "float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, complex64, complex128",
      call, argument, attribute_text(source, "dtype").c_str());
  return false;
}

bool refuse_layout(PyObject *source, const char *call, const char *argument, const char *repair) {
  raise_argument("%s: %s is not contiguous (shape %s); pass %s", call, argument, attribute_text(source, "shape").c_str(),
                 repair);
  return false;
}

bool refuse_read_only(const char *call, const char *argument) {
  raise_argument("%s: %s is read-only, and the result is written into it; pass a writable array, or a writable out=", call,
                 argument);
  return false;
}

// The attribute `name` of the module `module`. NULL where the module is not loaded. Never imports.
PyObject *loaded_object(const char *module, const char *name) {
  PyObject *found = PyDict_GetItemString(PyImport_GetModuleDict(), module);  // borrowed
  PyObject *object = found ? PyObject_GetAttrString(found, name) : nullptr;
  PyErr_Clear();
  return object;
}

PyTypeObject *loaded_type(const char *module, const char *name) {
  PyObject *type = loaded_object(module, name);
  if (type && PyType_Check(type)) return reinterpret_cast<PyTypeObject *>(type);
  Py_XDECREF(type);
  return nullptr;
}

// The names of the attributes of torch.Tensor that every call reads, as interned strings. A new string would cost more than
// the reading.
struct TorchNames {
  PyObject *is_cpu = PyUnicode_InternFromString("is_cpu"), *layout = PyUnicode_InternFromString("layout"),
           *dtype = PyUnicode_InternFromString("dtype"), *is_contiguous = PyUnicode_InternFromString("is_contiguous"),
           *is_conj = PyUnicode_InternFromString("is_conj"), *is_neg = PyUnicode_InternFromString("is_neg"),
           *data_ptr = PyUnicode_InternFromString("data_ptr"), *numel = PyUnicode_InternFromString("numel");
};
const TorchNames &torch_names() {
  static const TorchNames names;
  return names;
}

bool truth(PyObject *object, PyObject *method, bool *failed) {  // object.method() as a truth value
  PyObject *value = PyObject_CallMethodNoArgs(object, method);
  const int result = value ? PyObject_IsTrue(value) : -1;
  Py_XDECREF(value);
  if (result < 0) *failed = true;
  return result > 0;
}

// The entry of a dict, borrowed; NULL without an error where there is none, or None.
PyObject *entry(PyObject *dict, const char *name) {
  PyObject *value = PyDict_GetItemString(dict, name);
  return value == Py_None ? nullptr : value;
}

// Whether the object has the attribute. 1: yes; 0: no; -1 with a Python error: reading the attribute failed.
int has(PyObject *object, const char *attribute) {
  PyObject *value = PyObject_GetAttrString(object, attribute);
  if (!value && !PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
  PyErr_Clear();
  Py_XDECREF(value);
  return value ? 1 : 0;
}

// The number of the default stream in the CUDA array interface, and in DLPack on NVIDIA's devices. To every runtime NULL is
// that stream.
void *const kDefaultStream = reinterpret_cast<void *>(1);
constexpr int64_t kNoNumber = -1;  // DLPack has no numbers for the streams of the device

// Whether the call's rank works on the device `place`, and the device's driver knows `memory`, where that is not NULL.
// *number, where not NULL, becomes DLPack's number of `stream`. False with a Python error.
bool lent(PyObject *source, const dlpack::DlPlace &place, const void *memory, const PythonCall &call, const char *argument,
          void *stream, int64_t *number) {
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_dlpack(call.handle, place.type, place.number, memory, stream, number);
  }
  if (result == ISTHMUS_OK) return true;
  const std::string text = std::string(call.call) + ": " + argument + " (" + Py_TYPE(source)->tp_name + ") lies on " +
                           dlpack::device_name(place) + ", and " + isthmus_last_error();
  raise(result, text.c_str());
  return false;
}

}  // namespace

bool PythonCall::join(void *stream, const char *argument) {
  if (stream == kDefaultStream) stream = nullptr;
  if (named) return order_behind(stream, argument);
  if (options.on_stream != ISTHMUS_STREAM_NONE && options.stream != stream) {
    raise_argument("%s: %s is ready behind stream %p, and another array behind %p: say which one with stream=", call,
                   argument, stream, options.stream);
    return false;
  }
  stand_on(stream);
  return true;
}

bool PythonCall::order_behind(void *stream, const char *argument) {
  if (stream == options.stream) return true;
  isthmus_result result;
  {
    NoGil nogil;
    result = isthmus_comm_order(handle, stream, options.stream);
  }
  if (result == ISTHMUS_OK) return true;
  const std::string text =
      std::string(call) + ": " + argument + " is ready behind another stream than stream=: " + isthmus_last_error();
  raise(result, text.c_str());
  return false;
}

bool PythonCall::join_default(int64_t number, const char *argument) {
  if (named || number == kNoNumber) return true;
  by_default = options.on_stream == ISTHMUS_STREAM_NONE || by_default;
  return join(reinterpret_cast<void *>(static_cast<intptr_t>(number)), argument);  // the number is a handle as well
}

Array &Array::operator=(Array &&other) noexcept {
  if (this != &other) {
    drop();
    data = other.data;
    count = other.count;
    dtype = other.dtype;
    source_ = other.source_;
    keep_ = other.keep_;
    held_ = other.held_;
    other.keep_ = nullptr;
    other.source_ = nullptr;
  }
  return *this;
}

// Letting go of the array may run a producer's Python code. That code must not see a Python error that is being raised, so
// the error is put aside meanwhile.
void Array::drop() noexcept {
  if (!keep_) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  Py_CLEAR(keep_);
  PyErr_Restore(type, value, trace);
}

void Array::hold() {
  if (held_ || keep_ || !source_) return;
  keep_ = Py_NewRef(source_);
  held_ = true;
}

bool Array::read(PyObject *source, PythonCall &call, const char *argument, Access access) {
  source_ = source;
  if (ndarray_type && PyObject_TypeCheck(source, ndarray_type)) return read_numpy(source, call.call, argument, access);
  if (tensor_type && PyObject_TypeCheck(source, tensor_type)) return read_torch(source, call, argument, access);
  if (!ndarray_type && (ndarray_type = loaded_type("numpy", "ndarray")) && PyObject_TypeCheck(source, ndarray_type))
    return read_numpy(source, call.call, argument, access);
  if (!tensor_type && (tensor_type = loaded_type("torch", "Tensor")) && PyObject_TypeCheck(source, tensor_type))
    return read_torch(source, call, argument, access);
  if (PyCapsule_CheckExact(source)) return read_capsule(source, call, argument, access);
  // Arrays on a device may have the buffer protocol as well, as CuPy's have. The buffer protocol knows no streams, and gives
  // the memory only where the host reaches the memory. So a rank with a device first asks for the CUDA array interface. An
  // object that refuses the buffer protocol is asked for the other protocols.
  const bool buffer = PyObject_CheckBuffer(source), host = isthmus_comm_device(call.handle) < 0;
  if (buffer && host && view(source)) return read_buffer(call.call, argument, access);
  const int cuda = has(source, "__cuda_array_interface__");
  if (cuda != 0) return cuda > 0 && read_cuda(source, call, argument, access);
  if (buffer && !host && view(source)) return read_buffer(call.call, argument, access);
  const int lends = has(source, "__dlpack__");
  if (lends != 0) return lends > 0 && read_dlpack(source, call, argument, access);
  if (buffer) {  // the object has no other protocol: the error is that of the buffer protocol
    keep_ = PyMemoryView_FromObject(source);
    return keep_ && read_buffer(call.call, argument, access);
  }
  raise_unsupported("%s: %s must be an array (NumPy, torch, or anything with the buffer protocol or DLPack), not %s",
                    call.call, argument, Py_TYPE(source)->tp_name);
  return false;
}

bool Array::read_numpy(PyObject *source, const char *call, const char *argument, Access access) {
  const auto *array = reinterpret_cast<const NumpyArray *>(source);
  const auto *descr = reinterpret_cast<const NumpyDescr *>(array->descr);
  isthmus_dtype known;
  if (!dtype_from_numpy(source, descr->type_num, &known) || descr->byteorder == '>')
    return refuse_dtype(source, call, argument);
  if (!(array->flags & kContiguous))
    return refuse_layout(source, call, argument, (std::string("numpy.ascontiguousarray(") + argument + ")").c_str());
  if (access == Access::Write && !(array->flags & kWriteable)) return refuse_read_only(call, argument);
  data = array->data;
  dtype = known;
  count = 1;
  for (int i = 0; i < array->nd; ++i) count *= static_cast<uint64_t>(array->dimensions[i]);
  return true;
}

// Reads memory of a device by the CUDA array interface (versions 2 and 3). CuPy and Numba have that interface.
bool Array::read_cuda(PyObject *source, PythonCall &operation, const char *argument, Access access) {
  const char *const call = operation.call;
  const auto dict = py::reinterpret_steal<py::object>(PyObject_GetAttrString(source, "__cuda_array_interface__"));
  if (!dict) return false;
  PyObject *shape = PyDict_Check(dict.ptr()) ? entry(dict.ptr(), "shape") : nullptr,
           *typestr = shape ? entry(dict.ptr(), "typestr") : nullptr, *place = shape ? entry(dict.ptr(), "data") : nullptr;
  if (!typestr || !place || !PyUnicode_Check(typestr) || !PyTuple_Check(shape) || !PyTuple_Check(place) ||
      PyTuple_GET_SIZE(place) != 2) {
    raise_unsupported("%s: %s has a __cuda_array_interface__ without shape, typestr and data", call, argument);
    return false;
  }
  if (entry(dict.ptr(), "mask")) {
    raise_unsupported("%s: %s is a masked array; pass one without a mask", call, argument);
    return false;
  }
  // The interface cannot name some types (bfloat16, float8), and gives raw bytes for them. The object's dtype names such a
  // type.
  if (!dtype_from_typestr(PyUnicode_AsUTF8(typestr), &dtype) &&
      !dtype_from_name(attribute_text(source, "dtype").c_str(), &dtype))
    return refuse_dtype(source, call, argument);
  count = 1;
  const Py_ssize_t dimensions = PyTuple_GET_SIZE(shape);
  PyObject *strides = entry(dict.ptr(), "strides");
  if (strides && (!PyTuple_Check(strides) || PyTuple_GET_SIZE(strides) != dimensions))
    return refuse_layout(source, call, argument, "a contiguous copy of it");
  bool contiguous = true;
  for (Py_ssize_t i = dimensions; i-- > 0;) {
    const unsigned long long extent = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(shape, i));
    const long long stride = strides ? PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i)) : 0;
    if (PyErr_Occurred()) return false;
    if (strides && extent != 1 &&
        stride != static_cast<long long>(count) * static_cast<long long>(isthmus_dtype_size(dtype)))
      contiguous = false;
    count *= extent;
  }
  if (!contiguous && count > 0) return refuse_layout(source, call, argument, "a contiguous copy of it");
  data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(place, 0));
  const int read_only = PyObject_IsTrue(PyTuple_GET_ITEM(place, 1));
  if (PyErr_Occurred()) return false;
  if (access == Access::Write && read_only) return refuse_read_only(call, argument);
  if (isthmus_comm_device(operation.handle) < 0) {
    raise_unsupported(
        "%s: %s (%s) lies in the memory of a device, and this rank works on host memory: set ISTHMUS_DEVICE before "
        "init, or copy it to the host first",
        call, argument, Py_TYPE(source)->tp_name);
    return false;
  }
  operation.claims_device(access == Access::Write);
  if (PyObject *behind = entry(dict.ptr(), "stream")) {
    const unsigned long long stream = PyLong_Check(behind) ? PyLong_AsUnsignedLongLong(behind) : 0;
    PyErr_Clear();
    if (stream == 0 || stream == static_cast<unsigned long long>(-1)) {
      raise_argument(
          "%s: %s has a __cuda_array_interface__ whose stream is %s, which is none: 1 is the default stream, 2 that of the "
          "thread, other numbers are handles",
          call, argument, text_of(behind).c_str());
      return false;
    }
    return operation.join(reinterpret_cast<void *>(stream), argument);
  }
  return true;
}

bool Array::read_torch(PyObject *source, PythonCall &operation, const char *argument, Access access) {
  const char *const call = operation.call;
  const TorchNames &names = torch_names();
  bool failed = false;
  PyObject *on_cpu = PyObject_GetAttr(source, names.is_cpu);
  const bool host = on_cpu == Py_True;
  Py_XDECREF(on_cpu);
  PyErr_Clear();
  static PyObject *strided = nullptr;  // without an initializer: its guard and the GIL could be taken in either order
  if (!strided) strided = loaded_object("torch", "strided");
  PyObject *layout = PyObject_GetAttr(source, names.layout);
  Py_XDECREF(layout);  // torch's layouts live for ever
  if (layout != strided) {
    raise_unsupported("%s: %s is a tensor of layout %s; pass a dense one, %s.to_dense()", call, argument,
                      attribute_text(source, "layout").c_str(), argument);
    return false;
  }
  if (!dtype_from_torch(source, names.dtype, &dtype)) return PyErr_Occurred() ? false : refuse_dtype(source, call, argument);
  if (!truth(source, names.is_contiguous, &failed))
    return failed ? false : refuse_layout(source, call, argument, (std::string(argument) + ".contiguous()").c_str());
  if ((dtype == ISTHMUS_COMPLEX64 || dtype == ISTHMUS_COMPLEX128 ? truth(source, names.is_conj, &failed) : false) ||
      truth(source, names.is_neg, &failed)) {
    raise_argument("%s: %s is a lazy conjugate or negative view; pass %s.resolve_conj().resolve_neg()", call, argument,
                   argument);
    return false;
  }
  if (failed) return false;
  if (!host) {  // the tensor's DLPack knows the device and orders the streams
    const auto plain = py::reinterpret_steal<py::object>(PyObject_CallMethod(source, "detach", nullptr));
    if (!plain) return false;
    if (read_dlpack(plain.ptr(), operation, argument, access)) return true;
    if (PyErr_Occurred() == PyExc_ValueError) {  // torch's error for a device without a name in DLPack
      PyErr_Clear();
      raise_unsupported("%s: %s is a tensor on %s, which DLPack has no name for; pass %s.cpu()", call, argument,
                        attribute_text(source, "device").c_str(), argument);
    }
    return false;
  }
  PyObject *pointer = PyObject_CallMethodNoArgs(source, names.data_ptr);
  PyObject *elements = pointer ? PyObject_CallMethodNoArgs(source, names.numel) : nullptr;
  if (elements) {
    data = PyLong_AsVoidPtr(pointer);
    count = PyLong_AsUnsignedLongLong(elements);
  }
  Py_XDECREF(pointer);
  Py_XDECREF(elements);
  return !PyErr_Occurred();
}

bool Array::read_dlpack(PyObject *source, PythonCall &operation, const char *argument, Access access) {
  const char *const call = operation.call;
  dlpack::DlPlace place;
  PyObject *answer = PyObject_CallMethod(source, "__dlpack_device__", nullptr);
  const bool known = answer && PyArg_ParseTuple(answer, "ii", &place.type, &place.number);
  Py_XDECREF(answer);
  if (!known) return false;
  // The producer still has work on the array. The producer makes the stream on which the call stands wait for that work.
  int64_t stream = kNoNumber;
  const bool stands = operation.options.on_stream != ISTHMUS_STREAM_NONE;
  if (!dlpack::on_host(place) &&
      !(lent(source, place, nullptr, operation, argument, stands ? operation.options.stream : nullptr, &stream) &&
        (stands || operation.join_default(stream, argument))))
    return false;
  const auto method = py::reinterpret_steal<py::object>(PyObject_GetAttrString(source, "__dlpack__"));
  const auto options = py::reinterpret_steal<py::object>(
      stream == kNoNumber ? PyDict_New() : Py_BuildValue("{sL}", "stream", static_cast<long long>(stream)));
  const auto version = py::reinterpret_steal<py::object>(Py_BuildValue("(ii)", 1, 0));
  const auto none = py::reinterpret_steal<py::object>(PyTuple_New(0));
  if (!method || !options || !version || !none || PyDict_SetItemString(options.ptr(), "max_version", version.ptr()) < 0)
    return false;
  auto capsule = py::reinterpret_steal<py::object>(PyObject_Call(method.ptr(), none.ptr(), options.ptr()));
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {  // an older producer, which does not know max_version
    PyErr_Clear();
    if (PyDict_DelItemString(options.ptr(), "max_version") < 0) return false;
    capsule = py::reinterpret_steal<py::object>(PyObject_Call(method.ptr(), none.ptr(), options.ptr()));
  }
  if (!capsule) return false;
  if (!PyCapsule_CheckExact(capsule.ptr())) {
    raise_unsupported("%s: %s.__dlpack__() gave a %s, not a capsule", call, argument, Py_TYPE(capsule.ptr())->tp_name);
    return false;
  }
  return read_capsule(capsule.ptr(), operation, argument, access);
}

bool Array::read_capsule(PyObject *capsule, PythonCall &operation, const char *argument, Access access) {
  const char *const call = operation.call;
  keep_ = Py_NewRef(capsule);
  dlpack::Found found;
  if (!dlpack::read_capsule(capsule, call, argument, &found)) return false;
  const bool host = dlpack::on_host(found.place);
  // An array without elements may have any address. NULL stands for all of them.
  if (!host && found.count == 0) found.data = nullptr;
  if (!host) {
    int64_t stream = kNoNumber;
    // The caller passed a capsule, so no producer was asked for one. By DLPack's rule its array is ready behind the default
    // stream.
    const bool given = capsule == source_;
    if (!lent(source_, found.place, found.data, operation, argument, nullptr, given ? &stream : nullptr) ||
        !operation.join_default(stream, argument))
      return false;
  }
  if (!found.contiguous)
    return refuse_layout(
        source_, call, argument,
        host ? (std::string("numpy.ascontiguousarray(") + argument + ")").c_str() : "a contiguous copy of it");
  if (access == Access::Write && found.read_only) return refuse_read_only(call, argument);
  if (access == Access::Write && found.copied) {
    raise_argument("%s: %s (%s) gave a copy of itself to write into, which nobody would see; pass an array that is none",
                   call, argument, Py_TYPE(source_)->tp_name);
    return false;
  }
  data = found.data;
  count = found.count;
  dtype = found.dtype;
  return true;
}

bool Array::view(PyObject *source) {
  keep_ = PyMemoryView_FromObject(source);
  if (!keep_) PyErr_Clear();
  return keep_ != nullptr;
}

bool Array::read_buffer(const char *call, const char *argument, Access access) {
  const Py_buffer *view = PyMemoryView_GET_BUFFER(keep_);
  if (!dtype_from_format(view->format, view->itemsize, &dtype)) {
    raise_unsupported("%s: %s has elements of buffer format '%s', which Isthmus does not carry", call, argument,
                      view->format ? view->format : "B");
    return false;
  }
  if (!PyBuffer_IsContiguous(view, 'C')) {
    raise_argument("%s: %s is not contiguous; pass numpy.ascontiguousarray(%s)", call, argument, argument);
    return false;
  }
  if (access == Access::Write && view->readonly) return refuse_read_only(call, argument);
  data = view->buf;
  count = static_cast<uint64_t>(view->len / view->itemsize);
  return true;
}

}  // namespace isthmus::python
