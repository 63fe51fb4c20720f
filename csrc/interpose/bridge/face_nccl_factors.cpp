// Reductions that a program creates: sums of elements that each rank multiplies by a factor of its own first.
#include <cstring>

#include "face_nccl.hpp"
#include "handles.hpp"

namespace isthmus::bridge::nccl {
namespace {

using interpose::kInvalidArgument;
using interpose::kSuccess;
using interpose::Op;
using interpose::Type;

// The value of a 16-bit or 8-bit float.
double small_float(unsigned bits, int exponent_bits, int mantissa_bits) {
  const unsigned mantissa = bits & ((1u << mantissa_bits) - 1),
                 exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const bool e4m3 = exponent_bits == 4;  // this one has no infinity, and one NaN
  const bool top = exponent == (1u << exponent_bits) - 1;
  const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1 : 1;
  if (top && (!e4m3 || mantissa == 7)) return mantissa ? __builtin_nan("") : sign * __builtin_inf();
  const double value =
      exponent ? __builtin_ldexp(1 + mantissa / static_cast<double>(1u << mantissa_bits), static_cast<int>(exponent) - bias)
               : __builtin_ldexp(mantissa / static_cast<double>(1u << mantissa_bits), 1 - bias);
  return sign * value;
}

template <class T>
T load(const void *p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace

uint64_t bits_of(isthmus_dtype type, const void *p) {
  uint64_t value = 0;
  std::memcpy(&value, p, isthmus_dtype_size(type));
  return value;
}
double number_at(isthmus_dtype type, const void *p) {
  switch (type) {
    case ISTHMUS_FLOAT16: return small_float(load<uint16_t>(p), 5, 10);
    case ISTHMUS_BFLOAT16: return small_float(load<uint16_t>(p), 8, 7);
    case ISTHMUS_FLOAT8_E4M3FN: return small_float(load<uint8_t>(p), 4, 3);
    case ISTHMUS_FLOAT8_E5M2: return small_float(load<uint8_t>(p), 5, 2);
    case ISTHMUS_FLOAT64: return load<double>(p);
    case ISTHMUS_FLOAT32: return static_cast<double>(load<float>(p));
    default: return 1;
  }
}

Outcome read_factor(const Comm &comm, BridgedCall &o) {
  if (!o.factor.at) return {};
  unsigned char bytes[8] = {};
  DevicePlace before;
  if (Outcome now = devices().current(before); !now.ok()) return now;
  devices().enter(comm.traits().place);
  Outcome read = devices().read(bytes, o.factor.at, isthmus_dtype_size(o.dtype), o.stream);
  devices().enter(before);
  if (!read.ok()) return read;
  o.factor.number = number_at(o.dtype, bytes);
  o.factor.bits = bits_of(o.dtype, bytes);
  return read;
}

Result create_premul_sum(Op *op, void *scalar, Type type, int residence, Handle handle) {
  constexpr const char *kCall = "ncclRedOpCreatePreMulSum";
  constexpr int kDevice = 0, kHost = 1;
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm(kCall);
  if (const Outcome o = comm->status(); o.code == ISTHMUS_IN_PROGRESS) return refused(kInvalidArgument, kCall, o.text);
  if (!op || !scalar || type < 0 || type >= kTypeCount || (residence != kDevice && residence != kHost))
    return refused(kInvalidArgument, kCall, "an argument is NULL or out of range");
  Factor factor;
  factor.dtype = kTypes[type];
  if (residence == kHost) {
    factor.number = number_at(factor.dtype, scalar);
    factor.bits = bits_of(factor.dtype, scalar);
  } else {
    factor.at = scalar;
  }
  *op = comm->add(factor) + kOpCount;
  return kSuccess;
}
Result destroy_op(Op op, Handle handle) {
  const CommPtr comm = bridge::find(handle);
  if (!comm) return no_comm("ncclRedOpDestroy");
  if (op >= kOpCount && comm->remove(op - kOpCount)) return kSuccess;
  return refused(kInvalidArgument, "ncclRedOpDestroy", "reduction " + std::to_string(op) + " is none that was created");
}

}  // namespace isthmus::bridge::nccl
