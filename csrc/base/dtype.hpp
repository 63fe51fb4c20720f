// Element types and reduction operations: sizes, names, what combines with what. Numbers as in isthmus.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isthmus {

enum class DType : uint8_t {
  Int8 = 0,
  UInt8,
  Int16,
  UInt16,
  Int32,
  UInt32,
  Int64,
  UInt64,
  Bool,
  Float16,
  BFloat16,
  Float32,
  Float64,
  Float8E4M3FN,
  Float8E5M2,
  Complex64,
  Complex128,
};
inline constexpr int kDTypeCount = 17;

enum class RedOp : uint8_t { Sum = 0, Avg, Prod, Min, Max, BAnd, BOr, BXor, PremulSum };
inline constexpr int kRedOpCount = 9;

constexpr size_t dtype_size(DType t) noexcept {
  constexpr uint8_t sizes[kDTypeCount] = {1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 4, 8, 1, 1, 8, 16};
  return sizes[static_cast<int>(t)];
}
const char *dtype_name(DType t) noexcept;
const char *redop_name(RedOp op) noexcept;
bool dtype_from_name(std::string_view name, DType &out) noexcept;  // "float32", "bfloat16", ...
bool redop_from_name(std::string_view name, RedOp &out) noexcept;  // "sum", ...

constexpr bool is_float(DType t) noexcept {
  return t == DType::Float16 || t == DType::BFloat16 || t == DType::Float32 || t == DType::Float64 ||
         t == DType::Float8E4M3FN || t == DType::Float8E5M2;
}
constexpr bool is_complex(DType t) noexcept { return t == DType::Complex64 || t == DType::Complex128; }
constexpr bool is_integer(DType t) noexcept { return static_cast<int>(t) < static_cast<int>(DType::Bool); }

// The type in which contributions of `t` are accumulated: float32 for the narrower floats, else `t` itself.
constexpr DType accumulator(DType t) noexcept {
  return t == DType::Float16 || t == DType::BFloat16 || t == DType::Float8E4M3FN || t == DType::Float8E5M2 ? DType::Float32
                                                                                                           : t;
}

// Bytes of a partial sum for each byte of data.
inline size_t accumulator_ratio(DType t) noexcept { return dtype_size(accumulator(t)) / dtype_size(t); }

// Whether a sum may be out of the range of `t` and inside that of its accumulator.
constexpr bool is_short_ranged(DType t) noexcept {
  return t == DType::Float16 || t == DType::Float8E4M3FN || t == DType::Float8E5M2;
}
// For how many halvings 2^-n is a number of the short-ranged type.
constexpr int most_halvings(DType t) noexcept {
  return t == DType::Float16 ? 24 : t == DType::Float8E5M2 ? 16 : t == DType::Float8E4M3FN ? 9 : 0;
}

// Whether (t, op) has a meaning: the rule is stated in isthmus.h.
constexpr bool combines(DType t, RedOp op) noexcept {
  switch (op) {
    case RedOp::Sum:
    case RedOp::Prod: return true;
    case RedOp::Avg: return t != DType::Bool;
    case RedOp::Min:
    case RedOp::Max: return !is_complex(t);
    case RedOp::BAnd:
    case RedOp::BOr:
    case RedOp::BXor: return is_integer(t) || t == DType::Bool;
    case RedOp::PremulSum: return is_float(t) || is_integer(t);
  }
  return false;
}

}  // namespace isthmus
