#include "dlpack.hpp"

#include "errors.hpp"

namespace isthmus::python::dlpack {
namespace {

struct DlDevice {
  int32_t type;
  int32_t id;
};
struct Type {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct Tensor {
  void *data;
  DlDevice device;
  int32_t ndim;
  Type dtype;
  int64_t *shape;
  int64_t *strides;  // elements; NULL: compact, row by row
  uint64_t byte_offset;
};
struct Managed {
  Tensor tensor;
  void *context;
  void (*deleter)(Managed *);
};
struct Version {
  uint32_t major, minor;
};
struct ManagedVersioned {
  Version version;
  void *context;
  void (*deleter)(ManagedVersioned *);
  uint64_t flags;
  Tensor tensor;
};
constexpr uint64_t kReadOnly = 1, kCopied = 2;

// (code, bits) of the specification's DLDataTypeCode.
bool dtype_of(Type type, isthmus_dtype *out) {
  constexpr struct {
    uint8_t code, bits;
    isthmus_dtype dtype;
  } known[] = {{0, 8, ISTHMUS_INT8},           {0, 16, ISTHMUS_INT16},       {0, 32, ISTHMUS_INT32},
               {0, 64, ISTHMUS_INT64},         {1, 8, ISTHMUS_UINT8},        {1, 16, ISTHMUS_UINT16},
               {1, 32, ISTHMUS_UINT32},        {1, 64, ISTHMUS_UINT64},      {2, 16, ISTHMUS_FLOAT16},
               {2, 32, ISTHMUS_FLOAT32},       {2, 64, ISTHMUS_FLOAT64},     {4, 16, ISTHMUS_BFLOAT16},
               {5, 64, ISTHMUS_COMPLEX64},     {5, 128, ISTHMUS_COMPLEX128}, {6, 8, ISTHMUS_BOOL},
               {10, 8, ISTHMUS_FLOAT8_E4M3FN}, {12, 8, ISTHMUS_FLOAT8_E5M2}};
  for (const auto &k : known) {
    if (k.code == type.code && k.bits == type.bits && type.lanes == 1) {
      *out = k.dtype;
      return true;
    }
  }
  return false;
}

bool is_contiguous(const Tensor &t) {
  if (!t.strides) return true;
  int64_t expected = 1;
  for (int i = t.ndim; i-- > 0;) {
    if (t.shape[i] != 1 && t.strides[i] != expected) return false;
    expected *= t.shape[i];
  }
  return true;
}

}  // namespace

bool on_host(const DlPlace &place) noexcept {
  return place.type == 1 || place.type == 3 || place.type == 11;
}  // CPU, CUDA's and ROCm's pinned host memory

std::string device_name(DlPlace place) {
  const char *name = "device";
  switch (place.type) {
    case 1: name = "cpu"; break;
    case 2: name = "cuda"; break;
    case 4: name = "opencl"; break;
    case 7: name = "vulkan"; break;
    case 8: name = "metal"; break;
    case 10: name = "rocm"; break;
    case 12: name = "extension device"; break;
    case 13: name = "cuda managed"; break;
    case 14: name = "oneapi"; break;
    default: return "device of DLPack type " + std::to_string(place.type) + ":" + std::to_string(place.number);
  }
  return std::string(name) + ":" + std::to_string(place.number);
}

bool read_capsule(PyObject *capsule, const char *call, const char *argument, Found *out) {
  const Tensor *t = nullptr;
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    const auto *managed = static_cast<const ManagedVersioned *>(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    if (managed->version.major > 1) {
      raise_unsupported("%s: %s uses DLPack %u.%u; this build reads versions 0 and 1", call, argument,
                        managed->version.major, managed->version.minor);
      return false;
    }
    out->read_only = (managed->flags & kReadOnly) != 0;
    out->copied = (managed->flags & kCopied) != 0;
    t = &managed->tensor;
  } else if (PyCapsule_IsValid(capsule, "dltensor")) {
    t = &static_cast<const Managed *>(PyCapsule_GetPointer(capsule, "dltensor"))->tensor;
  } else {
    const char *name = PyCapsule_GetName(capsule);
    PyErr_Clear();
    raise_unsupported(
        "%s: %s is a capsule named '%s', not a DLPack tensor that is still unused; ask its owner for a new one", call,
        argument, name ? name : "");
    return false;
  }
  out->place = {t->device.type, t->device.id};
  if (!dtype_of(t->dtype, &out->dtype)) {
    raise_unsupported("%s: %s has DLPack type code %d with %d bits and %d lanes, which Isthmus does not carry", call,
                      argument, t->dtype.code, t->dtype.bits, t->dtype.lanes);
    return false;
  }
  out->count = 1;
  for (int i = 0; i < t->ndim; ++i) out->count *= static_cast<uint64_t>(t->shape[i]);
  out->contiguous = out->count == 0 || is_contiguous(*t);
  out->data = t->data ? static_cast<char *>(t->data) + t->byte_offset : nullptr;
  return true;
}

}  // namespace isthmus::python::dlpack
