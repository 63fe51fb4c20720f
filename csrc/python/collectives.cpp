#include "collectives.hpp"

namespace isthmus::python {
namespace {

// The C++ object behind `self`, without pybind11's type lookup. CPython's method descriptor has already checked the class.
PythonCommunicator *behind(PyObject *self) {
  auto *instance = reinterpret_cast<py::detail::instance *>(self);
  return static_cast<PythonCommunicator *>(instance->simple_layout ? instance->simple_value_holder[0]
                                                                   : instance->nonsimple.values_and_holders[0]);
}

// Reads x into *in, and `out`, where the caller gave another array, into *result. Else *result stays empty: the operation
// writes into x, which must be writable.
bool read_in_out(PythonCall &call, PyObject *x, PyObject *out, Array *in, Array *result) {
  if (!out || out == x) return in->read(x, call, "x", Access::Write);
  return in->read(x, call, "x", Access::Read) && result->read(out, call, "out", Access::Write) &&
         same_dtype(call.call, *in, "x", *result, "out") && exact_count(call.call, *result, "out", in->count, "as x") &&
         disjoint_or_same(call.call, *in, *result, "give out=x or a separate array");
}

PyObject *all_reduce(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("all_reduce", 1, 3,
                                   {"x", "op", "out", "async_op", "timeout", "scale", "stream", "keep_input", "commit"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  isthmus_redop op = ISTHMUS_SUM;
  Array in, out;
  if (!launch.open(self, v[3], v[4], v[6], v[7], v[8]) || !read_op(v[1], launch.call, &op) || !launch.scale(v[5], op) ||
      !read_in_out(launch, v[0], v[2], &in, &out))
    return nullptr;
  void *recv = out ? out.data : in.data;
  return submit(
      launch, out ? v[2] : v[0],
      [&](isthmus_work_t *work) {
        return isthmus_all_reduce(launch.handle, in.data, recv, in.count, in.dtype, op, launch.call_options(), work);
      },
      in, out);
}

PyObject *reduce(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature(
      "reduce", 1, 4, {"x", "root", "op", "out", "async_op", "timeout", "scale", "stream", "keep_input", "commit"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  isthmus_redop op = ISTHMUS_SUM;
  int root = 0;
  Array in, out;
  if (!launch.open(self, v[4], v[5], v[7], v[8], v[9]) || !read_int(v[1], launch.call, "root", &root) ||
      !in_world(launch.call, "root", root, launch.communicator->size()) || !read_op(v[2], launch.call, &op) ||
      !launch.scale(v[6], op))
    return nullptr;
  const bool is_root = launch.communicator->rank() == root;
  if (is_root ? !read_in_out(launch, v[0], v[3], &in, &out) : !in.read(v[0], launch, "x", Access::Read)) return nullptr;
  void *recv = !is_root ? nullptr : out ? out.data : in.data;
  return submit(
      launch,
      !is_root ? Py_None
      : out    ? v[3]
               : v[0],
      [&](isthmus_work_t *work) {
        return isthmus_reduce(launch.handle, in.data, recv, in.count, in.dtype, op, root, launch.call_options(), work);
      },
      in, out);
}

PyObject *broadcast(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("broadcast", 0, 3,
                                   {"x", "root", "out", "async_op", "timeout", "stream", "keep_input", "commit"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int root = 0;
  Array in, out;
  if (!launch.open(self, v[3], v[4], v[5], v[6], v[7]) || !read_int(v[1], launch.call, "root", &root) ||
      !in_world(launch.call, "root", root, launch.communicator->size()))
    return nullptr;
  const bool is_root = launch.communicator->rank() == root;
  PyObject *const target = v[2] ? v[2] : v[0];
  if (is_root ? !v[0] : !target)
    return raise_argument("broadcast: %s", is_root ? "the root needs x" : "a rank that is not the root needs x or out");
  if (is_root) {  // the root only reads x, unless out is another array
    if (!in.read(v[0], launch, "x", Access::Read)) return nullptr;
    if (v[2] && v[2] != v[0] &&
        (!out.read(v[2], launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
         !exact_count(launch.call, out, "out", in.count, "as x") ||
         !disjoint_or_same(launch.call, in, out, "give out=x or a separate array")))
      return nullptr;
  } else if (!out.read(target, launch, v[2] ? "out" : "x", Access::Write)) {
    return nullptr;
  }
  const Array &shape = is_root ? in : out;
  void *recv = out ? out.data : in.data;
  const uint64_t count = shape.count;
  const isthmus_dtype dtype = shape.dtype;
  return submit(
      launch, target,
      [&](isthmus_work_t *work) {
        return isthmus_broadcast(launch.handle, is_root ? in.data : nullptr, recv, count, dtype, root, launch.call_options(),
                                 work);
      },
      in, out);
}

PyObject *all_gather(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("all_gather", 1, 2, {"x", "out", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  Array in, out;
  if (!launch.open(self, v[2], v[3], v[4]) || !in.read(v[0], launch, "x", Access::Read)) return nullptr;
  const auto world = static_cast<uint64_t>(launch.communicator->size());
  const auto result =
      py::reinterpret_steal<py::object>(v[1] ? Py_NewRef(v[1]) : new_array("stacked", v[0], static_cast<long long>(world)));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
      !exact_count(launch.call, out, "out", in.count * world, "world size times x"))
    return nullptr;
  const void *own = out.at(static_cast<uint64_t>(launch.communicator->rank()) * in.count);
  if (in.data != own && !disjoint_or_same(launch.call, in, out, "in place x is out's block of this rank")) return nullptr;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_all_gather(launch.handle, in.data, out.data, in.count, in.dtype, launch.call_options(), work);
      },
      in, out);
}

PyObject *reduce_scatter(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("reduce_scatter", 1, 3, {"x", "op", "out", "async_op", "timeout", "scale", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  isthmus_redop op = ISTHMUS_SUM;
  Array in, out;
  if (!launch.open(self, v[3], v[4], v[6]) || !read_op(v[1], launch.call, &op) || !launch.scale(v[5], op) ||
      !in.read(v[0], launch, "x", Access::Read))
    return nullptr;
  const auto world = static_cast<uint64_t>(launch.communicator->size());
  if (in.count % world != 0)
    return raise_argument("reduce_scatter: x has %llu elements, which %llu ranks cannot share equally; use reduce_scatter_v",
                          static_cast<unsigned long long>(in.count), static_cast<unsigned long long>(world));
  const uint64_t count = in.count / world;
  const auto result =
      py::reinterpret_steal<py::object>(v[2] ? Py_NewRef(v[2]) : new_array("block", v[0], static_cast<long long>(world)));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
      !exact_count(launch.call, out, "out", count, "x divided by the world size"))
    return nullptr;
  const void *own = in.at(static_cast<uint64_t>(launch.communicator->rank()) * count);
  if (out.data != own && !disjoint_or_same(launch.call, in, out, "in place out is x's block of this rank")) return nullptr;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_reduce_scatter(launch.handle, in.data, out.data, count, in.dtype, op, launch.call_options(), work);
      },
      in, out);
}

PyObject *all_to_all(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("all_to_all", 1, 2,
                                   {"x", "out", "async_op", "timeout", "stream", "keep_input", "commit"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  Array in, out;
  if (!launch.open(self, v[2], v[3], v[4], v[5], v[6])) return nullptr;
  const auto result = py::reinterpret_steal<py::object>(v[1] ? Py_NewRef(v[1]) : new_array("same", v[0], 0));
  if (!result || !read_in_out(launch, v[0], result.ptr(), &in, &out)) return nullptr;
  const auto world = static_cast<uint64_t>(launch.communicator->size());
  if (in.count % world != 0)
    return raise_argument("all_to_all: x has %llu elements, which %llu ranks cannot share equally; use all_to_all_v",
                          static_cast<unsigned long long>(in.count), static_cast<unsigned long long>(world));
  void *recv = out ? out.data : in.data;
  const uint64_t count = in.count / world;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_all_to_all(launch.handle, in.data, recv, count, in.dtype, launch.call_options(), work);
      },
      in, out);
}

PyObject *gather(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("gather", 1, 3, {"x", "root", "out", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int root = 0;
  Array in, out;
  if (!launch.open(self, v[3], v[4], v[5]) || !read_int(v[1], launch.call, "root", &root) ||
      !in_world(launch.call, "root", root, launch.communicator->size()) || !in.read(v[0], launch, "x", Access::Read))
    return nullptr;
  const auto world = static_cast<uint64_t>(launch.communicator->size());
  auto result = py::reinterpret_steal<py::object>(Py_NewRef(Py_None));
  if (launch.communicator->rank() == root) {
    result = py::reinterpret_steal<py::object>(v[2] ? Py_NewRef(v[2])
                                                    : new_array("stacked", v[0], static_cast<long long>(world)));
    if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
        !exact_count(launch.call, out, "out", in.count * world, "world size times x"))
      return nullptr;
    const void *own = out.at(static_cast<uint64_t>(root) * in.count);
    if (in.data != own && !disjoint_or_same(launch.call, in, out, "in place x is out's block of this rank")) return nullptr;
  }
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_gather(launch.handle, in.data, out.data, in.count, in.dtype, root, launch.call_options(), work);
      },
      in, out);
}

PyObject *scatter(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("scatter", 0, 3, {"x", "root", "out", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int root = 0;
  Array in, out;
  if (!launch.open(self, v[3], v[4], v[5]) || !read_int(v[1], launch.call, "root", &root) ||
      !in_world(launch.call, "root", root, launch.communicator->size()))
    return nullptr;
  const auto world = static_cast<uint64_t>(launch.communicator->size());
  const bool is_root = launch.communicator->rank() == root;
  if (is_root && !v[0]) return raise_argument("scatter: the root needs x");
  if (!is_root && !v[2]) return raise_argument("scatter: a rank that is not the root needs out");
  if (is_root) {
    if (!in.read(v[0], launch, "x", Access::Read)) return nullptr;
    if (in.count % world != 0)
      return raise_argument("scatter: x has %llu elements, which %llu ranks cannot share equally; use scatter_v",
                            static_cast<unsigned long long>(in.count), static_cast<unsigned long long>(world));
  }
  const auto result =
      py::reinterpret_steal<py::object>(v[2] ? Py_NewRef(v[2]) : new_array("block", v[0], static_cast<long long>(world)));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write)) return nullptr;
  if (is_root) {
    if (!same_dtype(launch.call, in, "x", out, "out") ||
        !exact_count(launch.call, out, "out", in.count / world, "x divided by the world size"))
      return nullptr;
    const void *own = in.at(static_cast<uint64_t>(root) * out.count);
    if (out.data != own && !disjoint_or_same(launch.call, in, out, "in place out is x's block of this rank")) return nullptr;
  }
  const uint64_t count = out.count;
  const isthmus_dtype dtype = out.dtype;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_scatter(launch.handle, in.data, out.data, count, dtype, root, launch.call_options(), work);
      },
      in, out);
}

PyObject *barrier(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("barrier", 0, 0, {"async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  if (!launch.open(self, v[0], v[1], v[2])) return nullptr;
  return submit(launch, Py_None,
                [&](isthmus_work_t *work) { return isthmus_barrier(launch.handle, launch.call_options(), work); });
}

bool good_tag(const char *call, int tag) {
  if (tag < 0) raise_argument("%s: tag=%d must be 0 or more", call, tag);
  return tag >= 0;
}

PyObject *send(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("send", 2, 3, {"x", "peer", "tag", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int peer = -1, tag = 0;
  Array in;
  if (!launch.open(self, v[3], v[4], v[5]) || !read_int(v[1], launch.call, "peer", &peer) ||
      !in_world(launch.call, "peer", peer, launch.communicator->size()) || !read_int(v[2], launch.call, "tag", &tag) ||
      !good_tag(launch.call, tag) || !in.read(v[0], launch, "x", Access::Read))
    return nullptr;
  return submit(
      launch, Py_None,
      [&](isthmus_work_t *work) {
        return isthmus_send(launch.handle, in.data, in.count, in.dtype, peer, tag, launch.call_options(), work);
      },
      in);
}

PyObject *recv(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("recv", 1, 3, {"x", "peer", "tag", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int peer = ISTHMUS_ANY_SOURCE, tag = 0, source = -1;
  Array out;
  if (!launch.open(self, v[3], v[4], v[5]) || !read_int(v[1], launch.call, "peer", &peer) ||
      (peer != ISTHMUS_ANY_SOURCE && !in_world(launch.call, "peer", peer, launch.communicator->size())) ||
      !read_int(v[2], launch.call, "tag", &tag) || !good_tag(launch.call, tag) ||
      !out.read(v[0], launch, "x", Access::Write))
    return nullptr;
  const bool alone = this_thread_group().depth == 0, at_once = alone && !launch.async_op;  // at once the sender is known
  // The default stream does not wait for the message. The program may go on to send a message from that stream for which the
  // sender of this message waits.
  if (launch.by_default && alone) launch.options.on_stream = ISTHMUS_STREAM_BEFORE;
  PyObject *result = submit(
      launch, launch.async_op ? v[0] : Py_None,
      [&](isthmus_work_t *work) {
        return isthmus_recv(launch.handle, out.data, out.count, out.dtype, peer, tag, at_once ? &source : nullptr,
                            launch.call_options(), work);
      },
      out);
  if (!result || !at_once) return result;
  Py_DECREF(result);
  return PyLong_FromLong(source >= 0 ? source : peer);
}

}  // namespace

bool OperationCall::open(PyObject *self_object, PyObject *async_value, PyObject *timeout, PyObject *stream, PyObject *keep,
                         PyObject *commits) {
  self = self_object;
  communicator = behind(self_object);
  if (!communicator) {
    PyErr_SetString(PyExc_TypeError, "Comm.__init__ was not called");
    return false;
  }
  handle = communicator->handle(call);
  bool keeps = false, all_or_none = false;
  if (!handle || !read_truth(async_value, &async_op) || !read_truth(keep, &keeps) || !read_truth(commits, &all_or_none))
    return false;
  if (keeps || all_or_none) keep_output(all_or_none);
  if (!read_timeout(timeout, call, &options.timeout)) return false;
  has_options = has_options || timeout;
  if (stream) {
    void *const given = PyLong_AsVoidPtr(stream);
    if (PyErr_Occurred()) {
      PyErr_Clear();
      raise_argument("%s: stream= must be the handle of a stream, as an integer", call);
      return false;
    }
    stand_on(given);
    named = true;
  }
  return true;
}

bool OperationCall::scale(PyObject *by, isthmus_redop op) {
  if ((op == ISTHMUS_PREMUL_SUM) != (by != nullptr)) {
    raise_argument(by ? "%s: scale= is premul_sum's factor and means nothing for another op"
                      : "%s: op premul_sum needs scale=, this rank's factor",
                   call);
    return false;
  }
  if (!by) return true;
  // A double may not hold this whole number. Integers are multiplied by the number's lowest 64 bits.
  if (PyIndex_Check(by)) {
    PyObject *const whole = PyNumber_Index(by);
    if (!whole) return false;
    factor = PyLong_AsUnsignedLongLongMask(whole);
    Py_DECREF(whole);
    options.factor = &factor;
  }
  options.scale = PyFloat_AsDouble(by);
  options.size = sizeof options;
  has_options = true;
  return !PyErr_Occurred();
}

PyObject *new_array(const char *function, PyObject *like, long long extra) {
  // Not a static initializer. The import gives the GIL away: one thread would hold the initializer's guard and wait for the
  // GIL, and another thread would hold the GIL and wait for the guard.
  static PyObject *module = nullptr;
  if (!module) {
    PyObject *imported = PyImport_ImportModule("isthmus._arrays");
    if (!imported) return nullptr;
    module = imported;  // the module lives for ever. Two threads that are here at the same time find the same module
  }
  return PyObject_CallMethod(module, function, "OL", like, extra);
}

bool same_dtype(const char *call, const Array &a, const char *a_name, const Array &b, const char *b_name) {
  if (a.dtype == b.dtype) return true;
  raise_argument("%s: %s is %s and %s is %s; they must have one dtype", call, a_name, isthmus_dtype_name(a.dtype), b_name,
                 isthmus_dtype_name(b.dtype));
  return false;
}

bool exact_count(const char *call, const Array &array, const char *name, uint64_t expected, const char *why) {
  if (array.count == expected) return true;
  raise_argument("%s: %s has %llu elements; it needs %llu, %s", call, name, static_cast<unsigned long long>(array.count),
                 static_cast<unsigned long long>(expected), why);
  return false;
}

bool disjoint_or_same(const char *call, const Array &in, const Array &out, const char *why) {
  const auto *a = static_cast<const char *>(in.data), *b = static_cast<const char *>(out.data);
  if (!in.bytes() || !out.bytes() || (a == b && in.bytes() == out.bytes()) || a + in.bytes() <= b || b + out.bytes() <= a)
    return true;
  raise_argument("%s: x and out share memory; %s", call, why);
  return false;
}

#define ISTHMUS_METHOD(name, doc) \
  { #name, reinterpret_cast < PyCFunction>(reinterpret_cast <void (*)()>(name)), METH_FASTCALL | METH_KEYWORDS, doc }

PyMethodDef kCollectives[] = {
    ISTHMUS_METHOD(
        all_reduce,
        "all_reduce(x, op='sum', out=None, *, async_op=False, timeout=None, scale=None, stream=None, keep_input=False, "
        "commit=False)\n\nCombines x, of one size on all ranks, element by element, into out or x. Returns that array."),
    ISTHMUS_METHOD(reduce,
                   "reduce(x, root=0, op='sum', out=None, *, async_op=False, timeout=None, scale=None, stream=None, "
                   "keep_input=False, commit=False)\n\n"
                   "all_reduce with the result on the root alone, in out, or in x without out. Returns that array on the "
                   "root, None on other ranks."),
    ISTHMUS_METHOD(broadcast,
                   "broadcast(x=None, root=0, out=None, *, async_op=False, timeout=None, stream=None, keep_input=False, "
                   "commit=False)\n\n"
                   "Copies the root's x into out, or x, of every rank. Other ranks need x or out. Returns that array."),
    ISTHMUS_METHOD(
        all_gather,
        "all_gather(x, out=None, *, async_op=False, timeout=None, stream=None)\n\n"
        "Stacks every rank's x by rank. out has size times as many elements as x; a new array has the shape (size, "
        "*x.shape). x may be out[rank]."),
    ISTHMUS_METHOD(reduce_scatter,
                   "reduce_scatter(x, op='sum', out=None, *, async_op=False, timeout=None, scale=None, stream=None)\n\n"
                   "Combines x over all ranks, element by element. x is size equal blocks, and rank r gets block r of the "
                   "result. out may be x's block of this rank."),
    ISTHMUS_METHOD(
        all_to_all,
        "all_to_all(x, out=None, *, async_op=False, timeout=None, stream=None, keep_input=False, commit=False)\n\n"
        "x is size equal blocks. Block d of rank s becomes block s of rank d. out has as many elements as x, and may "
        "be x."),
    ISTHMUS_METHOD(gather,
                   "gather(x, root=0, out=None, *, async_op=False, timeout=None, stream=None)\n\n"
                   "all_gather with the result on the root alone. Returns out on the root, None on other ranks."),
    ISTHMUS_METHOD(scatter,
                   "scatter(x=None, root=0, out=None, *, async_op=False, timeout=None, stream=None)\n\n"
                   "The root's x is size equal blocks, and rank r gets block r. The root needs x, other ranks need out."),
    ISTHMUS_METHOD(
        barrier,
        "barrier(*, async_op=False, timeout=None, stream=None)\n\nReturns when every rank has called barrier. The barrier "
        "waits for the ranks' calls alone, and for no work of a stream, with or without `stream`."),
    ISTHMUS_METHOD(send,
                   "send(x, peer, tag=0, *, async_op=False, timeout=None, stream=None)\n\nSends x to rank peer, which must "
                   "call recv with the same tag. A tag is 0 or more."),
    ISTHMUS_METHOD(recv,
                   "recv(x, peer=ANY_SOURCE, tag=0, *, async_op=False, timeout=None, stream=None)\n\n"
                   "Receives a message with this tag into x. Returns the sender's rank. In a group returns None."),
    {nullptr, nullptr, 0, nullptr}};

}  // namespace isthmus::python
