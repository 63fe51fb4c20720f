// What reduce.hpp promises, written as plainly as possible: one element at a time, conversions by arithmetic in float64. It
// shares nothing with the kernels but the enums.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "base/dtype.hpp"
#include "reduce/reduce.hpp"

namespace reference {

using isthmus::DType;
using isthmus::RedOp;

struct Format {
  int exponent, mantissa;
  bool infinity;
  int width() const { return 1 + exponent + mantissa; }
  int bias() const { return (1 << (exponent - 1)) - 1; }
  uint32_t top() const { return ((1u << exponent) - 1) << mantissa; }
  uint32_t sign() const { return 1u << (exponent + mantissa); }
  uint32_t nan() const { return infinity ? top() | 1u << (mantissa - 1) : sign() - 1; }
  double largest() const {
    const int e = (1 << exponent) - (infinity ? 2 : 1) - bias();
    return std::ldexp(2.0 - std::ldexp(infinity ? 1.0 : 2.0, -mantissa), e);
  }
};

inline bool is_narrow(DType t) { return isthmus::accumulator(t) != t; }

inline Format format_of(DType t) {
  switch (t) {
    case DType::Float16: return {5, 10, true};
    case DType::BFloat16: return {8, 7, true};
    case DType::Float8E4M3FN: return {4, 3, false};
    default: return {5, 2, true};  // Float8E5M2
  }
}

inline bool is_nan_code(const Format &f, uint32_t code) {
  const uint32_t magnitude = code & (f.sign() - 1);
  return f.infinity ? magnitude > f.top() : magnitude == f.nan();
}

inline float decode(const Format &f, uint32_t code) {
  if (is_nan_code(f, code)) return std::numeric_limits<float>::quiet_NaN();
  const uint32_t magnitude = code & (f.sign() - 1);
  const int e = static_cast<int>(magnitude >> f.mantissa), m = static_cast<int>(magnitude & ((1u << f.mantissa) - 1));
  double v;
  if (f.infinity && magnitude == f.top()) v = std::numeric_limits<double>::infinity();
  else if (e == 0) v = std::ldexp(m, 1 - f.bias() - f.mantissa);
  else v = std::ldexp((1 << f.mantissa) + m, e - f.bias() - f.mantissa);
  return static_cast<float>(code & f.sign() ? -v : v);
}

inline uint32_t encode(const Format &f, float x) {
  if (std::isnan(x)) return f.nan();
  const uint32_t sign = std::signbit(x) ? f.sign() : 0;
  double v = std::fabs(static_cast<double>(x));
  if (!std::isinf(v) && v != 0) {
    const int e = std::max(std::ilogb(v), 1 - f.bias());
    const double quantum = std::ldexp(1.0, e - f.mantissa);
    v = std::nearbyint(v / quantum) * quantum;  // exact but for the rounding: to nearest, ties to even
  }
  if (v > f.largest()) return f.infinity ? sign | f.top() : f.nan();
  if (v == 0) return sign;
  const int e = std::ilogb(v);
  if (e < 1 - f.bias()) return sign | static_cast<uint32_t>(std::ldexp(v, f.bias() - 1 + f.mantissa));
  const double fraction = std::ldexp(v, f.mantissa - e) - (1 << f.mantissa);
  return sign | static_cast<uint32_t>(e + f.bias()) << f.mantissa | static_cast<uint32_t>(fraction);
}

template <class T>
T load(const void *p, size_t i) {
  T v;
  std::memcpy(&v, static_cast<const char *>(p) + i * sizeof(T), sizeof(T));
  return v;
}
template <class T>
void store(void *p, size_t i, T v) {
  std::memcpy(static_cast<char *>(p) + i * sizeof(T), &v, sizeof(T));
}

template <class T>
T canonical(T v) {
  return std::isnan(v) ? std::numeric_limits<T>::quiet_NaN() : v;
}

template <class T>
struct Pair {
  T re, im;
};

template <class T>
T combine(RedOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case RedOp::Prod: return a * b;
      case RedOp::Min:
      case RedOp::Max: {
        if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
        if (a == 0 && b == 0) {
          const bool negative = op == RedOp::Min ? std::signbit(a) || std::signbit(b) : std::signbit(a) && std::signbit(b);
          return negative ? -T{0} : T{0};
        }
        return op == RedOp::Min ? (b < a ? b : a) : (b > a ? b : a);
      }
      default: return a + b;
    }
  } else {
    using U = std::conditional_t<sizeof(T) < 4, uint32_t, std::make_unsigned_t<T>>;  // no overflow of promoted operands
    switch (op) {
      case RedOp::Prod: return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
      case RedOp::Min: return b < a ? b : a;
      case RedOp::Max: return b > a ? b : a;
      case RedOp::BAnd: return static_cast<T>(a & b);
      case RedOp::BOr: return static_cast<T>(a | b);
      case RedOp::BXor: return static_cast<T>(a ^ b);
      default: return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    }
  }
}
template <class T>
Pair<T> combine(RedOp op, Pair<T> a, Pair<T> b) {
  if (op == RedOp::Prod) return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
  return {a.re + b.re, a.im + b.im};
}

template <class T>
T divided(T v, uint64_t by) {
  if constexpr (std::is_floating_point_v<T>) {
    return v / static_cast<T>(by);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(int64_t{v} / static_cast<int64_t>(by));
  } else {
    return static_cast<T>(v / by);
  }
}
template <class T>
Pair<T> divided(Pair<T> v, uint64_t by) {
  return {divided(v.re, by), divided(v.im, by)};
}
template <class T>
Pair<T> canonical(Pair<T> v) {
  return {canonical(v.re), canonical(v.im)};
}

// One element: `get(k)` is source k's contribution in the accumulator type.
template <class T, class Get>
T reduce_one(RedOp op, size_t sources, std::span<const uint32_t> groups, Get get) {
  T total{};
  bool first_group = true;
  size_t lo = 0;
  const uint32_t all[1] = {static_cast<uint32_t>(sources)};
  for (const uint32_t hi : groups.empty() ? std::span<const uint32_t>(all) : groups) {
    if (hi == lo) continue;
    T group = get(lo);
    for (size_t k = lo + 1; k < hi; ++k) group = combine(op, group, get(k));
    total = first_group ? group : combine(op, total, group);
    first_group = false;
    lo = hi;
  }
  return total;
}

template <class T>
void reduce_plain(const isthmus::reduce::LocalReduction &t, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T v = reduce_one<T>(t.op, t.sources.size(), t.groups, [&](size_t k) { return load<T>(t.sources[k].data, i); });
    if (t.op == RedOp::Avg && !t.partial) v = divided(v, t.divisor);
    if constexpr (!std::is_integral_v<T>) v = canonical(v);
    store(t.dst, i, v);
  }
}

inline void reduce_narrow(const isthmus::reduce::LocalReduction &t, size_t count) {
  const Format f = format_of(t.dtype);
  for (size_t i = 0; i < count; ++i) {
    float v = reduce_one<float>(t.op, t.sources.size(), t.groups, [&](size_t k) {
      const auto &s = t.sources[k];
      const float x = s.partial        ? load<float>(s.data, i)
                      : f.width() == 8 ? decode(f, load<uint8_t>(s.data, i))
                                       : decode(f, load<uint16_t>(s.data, i));
      return s.weight == 1 ? x : x * static_cast<float>(s.weight);
    });
    if (t.partial) {
      store(t.dst, i, canonical(v));
      continue;
    }
    if (t.op == RedOp::Avg) v = divided(v, t.divisor);
    const uint32_t code = encode(f, v);
    f.width() == 8 ? store(t.dst, i, static_cast<uint8_t>(code)) : store(t.dst, i, static_cast<uint16_t>(code));
  }
}

inline void reduce_bool(const isthmus::reduce::LocalReduction &t, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    bool v = load<uint8_t>(t.sources[0].data, i) != 0;
    for (size_t k = 1; k < t.sources.size(); ++k) {
      const bool b = load<uint8_t>(t.sources[k].data, i) != 0;
      switch (t.op) {
        case RedOp::Prod:
        case RedOp::Min:
        case RedOp::BAnd: v = v && b; break;
        case RedOp::BXor: v = v != b; break;
        default: v = v || b;
      }
    }
    store(t.dst, i, static_cast<uint8_t>(v));
  }
}

// Writes task.dst only.
inline void reduce(const isthmus::reduce::LocalReduction &t, size_t count) {
  switch (t.dtype) {
    case DType::Int8: return reduce_plain<int8_t>(t, count);
    case DType::UInt8: return reduce_plain<uint8_t>(t, count);
    case DType::Int16: return reduce_plain<int16_t>(t, count);
    case DType::UInt16: return reduce_plain<uint16_t>(t, count);
    case DType::Int32: return reduce_plain<int32_t>(t, count);
    case DType::UInt32: return reduce_plain<uint32_t>(t, count);
    case DType::Int64: return reduce_plain<int64_t>(t, count);
    case DType::UInt64: return reduce_plain<uint64_t>(t, count);
    case DType::Bool: return reduce_bool(t, count);
    case DType::Float32: return reduce_plain<float>(t, count);
    case DType::Float64: return reduce_plain<double>(t, count);
    case DType::Complex64: return reduce_plain<Pair<float>>(t, count);
    case DType::Complex128: return reduce_plain<Pair<double>>(t, count);
    default: return reduce_narrow(t, count);
  }
}

}  // namespace reference
