// The collectives with a count for each rank. Counts and displacements are elements. Without displacements the blocks lie
// back to back, in the order of the ranks.
#include <algorithm>

#include "collectives.hpp"

namespace isthmus::python {
namespace {

struct BlockLists {
  std::vector<uint64_t> counts, displs;
  bool placed = false;  // displacements were given
  uint64_t extent = 0;  // elements from the start of the buffer to the end of the last block

  const uint64_t *displacements() const { return placed ? displs.data() : nullptr; }
  uint64_t offset(int rank) const {
    if (placed) return displs[static_cast<size_t>(rank)];
    uint64_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += counts[static_cast<size_t>(r)];
    return sum;
  }

  bool read(const char *call, int world, PyObject *count_list, const char *count_name, PyObject *displ_list,
            const char *displ_name) {
    if (!read_counts(count_list, call, count_name, world, &counts)) return false;
    placed = displ_list != nullptr;
    if (placed && !read_counts(displ_list, call, displ_name, world, &displs)) return false;
    bool overflow = false;
    for (size_t r = 0; r < counts.size(); ++r) {
      uint64_t end;
      overflow |= __builtin_add_overflow(placed ? displs[r] : extent, counts[r], &end);
      if (!placed || counts[r]) extent = placed ? std::max(extent, end) : end;
    }
    if (overflow || extent > static_cast<uint64_t>(INT64_MAX)) {
      raise_argument("%s: %s add up to more than 2^63 elements", call, count_name);
      return false;
    }
    return true;
  }

  bool fits(const char *call, const Array &array, const char *name) const {
    if (array.count >= extent) return true;
    raise_argument("%s: %s has %llu elements, but the blocks reach to element %llu", call, name,
                   static_cast<unsigned long long>(array.count), static_cast<unsigned long long>(extent));
    return false;
  }
};

PyObject *given_or_new(PyObject *out, PyObject *like, uint64_t elements) {
  return out ? Py_NewRef(out) : new_array("flat", like, static_cast<long long>(elements));
}

PyObject *all_gather_v(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("all_gather_v", 2, 4, {"x", "counts", "out", "displs", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  BlockLists blocks;
  Array in, out;
  if (!launch.open(self, v[4], v[5], v[6]) ||
      !blocks.read(launch.call, launch.communicator->size(), v[1], "counts", v[3], "displs") ||
      !in.read(v[0], launch, "x", Access::Read))
    return nullptr;
  const int rank = launch.communicator->rank();
  if (!exact_count(launch.call, in, "x", blocks.counts[static_cast<size_t>(rank)], "counts[rank]")) return nullptr;
  const auto result = py::reinterpret_steal<py::object>(given_or_new(v[2], v[0], blocks.extent));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
      !blocks.fits(launch.call, out, "out"))
    return nullptr;
  if (in.data != out.at(blocks.offset(rank)) &&
      !disjoint_or_same(launch.call, in, out, "in place x is out's block of this rank"))
    return nullptr;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_all_gather_v(launch.handle, in.data, out.data, blocks.counts.data(), blocks.displacements(), in.dtype,
                                    launch.call_options(), work);
      },
      in, out);
}

PyObject *reduce_scatter_v(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("reduce_scatter_v", 2, 5,
                                   {"x", "counts", "op", "out", "displs", "async_op", "timeout", "scale", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  isthmus_redop op = ISTHMUS_SUM;
  BlockLists blocks;
  Array in, out;
  if (!launch.open(self, v[5], v[6], v[8]) ||
      !blocks.read(launch.call, launch.communicator->size(), v[1], "counts", v[4], "displs") ||
      !read_op(v[2], launch.call, &op) || !launch.scale(v[7], op) || !in.read(v[0], launch, "x", Access::Read) ||
      !(blocks.placed ? blocks.fits(launch.call, in, "x")
                      : exact_count(launch.call, in, "x", blocks.extent, "the sum of counts")))
    return nullptr;
  const int rank = launch.communicator->rank();
  const uint64_t own = blocks.counts[static_cast<size_t>(rank)];
  const auto result = py::reinterpret_steal<py::object>(given_or_new(v[3], v[0], own));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
      !exact_count(launch.call, out, "out", own, "counts[rank]"))
    return nullptr;
  if (out.data != in.at(blocks.offset(rank)) &&
      !disjoint_or_same(launch.call, in, out, "in place out is x's block of this rank"))
    return nullptr;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_reduce_scatter_v(launch.handle, in.data, out.data, blocks.counts.data(), blocks.displacements(),
                                        in.dtype, op, launch.call_options(), work);
      },
      in, out);
}

PyObject *all_to_all_v(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature(
      "all_to_all_v", 3, 6,
      {"x", "send_counts", "recv_counts", "out", "send_displs", "recv_displs", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  BlockLists sent, received;
  Array in, out;
  if (!launch.open(self, v[6], v[7], v[8]) ||
      !sent.read(launch.call, launch.communicator->size(), v[1], "send_counts", v[4], "send_displs") ||
      !received.read(launch.call, launch.communicator->size(), v[2], "recv_counts", v[5], "recv_displs") ||
      !in.read(v[0], launch, "x", Access::Read) || !sent.fits(launch.call, in, "x"))
    return nullptr;
  const auto result = py::reinterpret_steal<py::object>(given_or_new(v[3], v[0], received.extent));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
      !received.fits(launch.call, out, "out"))
    return nullptr;
  if (in.data == out.data && in.bytes()) return raise_argument("all_to_all_v: x and out share memory; give a separate out");
  if (!disjoint_or_same(launch.call, in, out, "give a separate out")) return nullptr;
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_all_to_all_v(launch.handle, in.data, sent.counts.data(), sent.displacements(), out.data,
                                    received.counts.data(), received.displacements(), in.dtype, launch.call_options(), work);
      },
      in, out);
}

PyObject *gather_v(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("gather_v", 2, 5,
                                   {"x", "counts", "root", "out", "displs", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int root = 0;
  BlockLists blocks;
  Array in, out;
  if (!launch.open(self, v[5], v[6], v[7]) ||
      !blocks.read(launch.call, launch.communicator->size(), v[1], "counts", v[4], "displs") ||
      !read_int(v[2], launch.call, "root", &root) || !in_world(launch.call, "root", root, launch.communicator->size()) ||
      !in.read(v[0], launch, "x", Access::Read))
    return nullptr;
  const int rank = launch.communicator->rank();
  if (!exact_count(launch.call, in, "x", blocks.counts[static_cast<size_t>(rank)], "counts[rank]")) return nullptr;
  auto result = py::reinterpret_steal<py::object>(Py_NewRef(Py_None));
  if (rank == root) {
    result = py::reinterpret_steal<py::object>(given_or_new(v[3], v[0], blocks.extent));
    if (!result || !out.read(result.ptr(), launch, "out", Access::Write) || !same_dtype(launch.call, in, "x", out, "out") ||
        !blocks.fits(launch.call, out, "out"))
      return nullptr;
    if (in.data != out.at(blocks.offset(rank)) &&
        !disjoint_or_same(launch.call, in, out, "in place x is out's block of this rank"))
      return nullptr;
  }
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_gather_v(launch.handle, in.data, out.data, blocks.counts.data(), blocks.displacements(), in.dtype,
                                root, launch.call_options(), work);
      },
      in, out);
}

PyObject *scatter_v(PyObject *self, PyObject *const *arguments, Py_ssize_t given, PyObject *keywords) {
  static const Signature signature("scatter_v", 2, 5,
                                   {"x", "counts", "root", "out", "displs", "async_op", "timeout", "stream"});
  PyObject *v[kMaxArguments];
  if (!signature.parse(arguments, given, keywords, v)) return nullptr;
  OperationCall launch{signature.function()};
  int root = 0;
  BlockLists blocks;
  Array in, out;
  if (!launch.open(self, v[5], v[6], v[7]) ||
      !blocks.read(launch.call, launch.communicator->size(), v[1], "counts", v[4], "displs") ||
      !read_int(v[2], launch.call, "root", &root) || !in_world(launch.call, "root", root, launch.communicator->size()))
    return nullptr;
  const int rank = launch.communicator->rank();
  const uint64_t own = blocks.counts[static_cast<size_t>(rank)];
  if (rank != root && !v[3]) return raise_argument("scatter_v: a rank that is not the root needs out");
  if (rank == root && (!in.read(v[0], launch, "x", Access::Read) || !blocks.fits(launch.call, in, "x"))) return nullptr;
  const auto result = py::reinterpret_steal<py::object>(given_or_new(v[3], v[0], own));
  if (!result || !out.read(result.ptr(), launch, "out", Access::Write) ||
      !exact_count(launch.call, out, "out", own, "counts[rank]"))
    return nullptr;
  if (rank == root) {
    if (!same_dtype(launch.call, in, "x", out, "out")) return nullptr;
    if (out.data != in.at(blocks.offset(rank)) &&
        !disjoint_or_same(launch.call, in, out, "in place out is x's block of this rank"))
      return nullptr;
  }
  return submit(
      launch, result.ptr(),
      [&](isthmus_work_t *work) {
        return isthmus_scatter_v(launch.handle, in.data, out.data, blocks.counts.data(), blocks.displacements(), out.dtype,
                                 root, launch.call_options(), work);
      },
      in, out);
}

}  // namespace

bool in_world(const char *call, const char *name, int rank, int world) {
  if (rank >= 0 && rank < world) return true;
  raise_argument("%s: %s=%d is no rank; ranks are 0 to %d", call, name, rank, world - 1);
  return false;
}

#define ISTHMUS_METHOD(name, doc) \
  { #name, reinterpret_cast < PyCFunction>(reinterpret_cast <void (*)()>(name)), METH_FASTCALL | METH_KEYWORDS, doc }

PyMethodDef kCollectivesV[] = {
    ISTHMUS_METHOD(all_gather_v,
                   "all_gather_v(x, counts, out=None, displs=None, *, async_op=False, timeout=None, stream=None)\n\n"
                   "Rank r's x has counts[r] elements, which begin at element displs[r] of out. counts must be equal on all "
                   "ranks. Without displs the blocks lie back to back."),
    ISTHMUS_METHOD(
        reduce_scatter_v,
        "reduce_scatter_v(x, counts, op='sum', out=None, displs=None, *, async_op=False, timeout=None, "
        "scale=None, stream=None)\n\n"
        "Combines x over all ranks, element by element. Rank r gets counts[r] elements of the result, which begin at "
        "element displs[r] of x."),
    ISTHMUS_METHOD(
        all_to_all_v,
        "all_to_all_v(x, send_counts, recv_counts, out=None, send_displs=None, recv_displs=None, *, "
        "async_op=False, timeout=None, stream=None)\n\nsend_counts[d] elements of x, from send_displs[d] on, go to "
        "rank d. recv_counts[s] elements of rank s come to out, from recv_displs[s] on."),
    ISTHMUS_METHOD(gather_v,
                   "gather_v(x, counts, root=0, out=None, displs=None, *, async_op=False, timeout=None, stream=None)\n\n"
                   "all_gather_v with the result on the root alone. Returns out on the root, None on other ranks."),
    ISTHMUS_METHOD(
        scatter_v,
        "scatter_v(x, counts, root=0, out=None, displs=None, *, async_op=False, timeout=None, stream=None)\n\n"
        "Rank r gets counts[r] elements of the root's x, from element displs[r] on. Ranks other than the root need "
        "out."),
    {nullptr, nullptr, 0, nullptr}};

}  // namespace isthmus::python
