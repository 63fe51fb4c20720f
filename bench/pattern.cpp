#include "pattern.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>

namespace isthmus::bench {
namespace {

using Complex = std::complex<double>;
constexpr size_t kPeriod = 1021;  // prime: no power of two, no usual count is a multiple of it

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool is_floating(isthmus_dtype t) { return t >= ISTHMUS_FLOAT16; }
bool is_signed(isthmus_dtype t) {
  return t == ISTHMUS_INT8 || t == ISTHMUS_INT16 || t == ISTHMUS_INT32 || t == ISTHMUS_INT64;
}

// Bits of the IEEE-like format with `eb` exponent and `mb` mantissa bits that is nearest to x, ties to even.
uint32_t encode_small(double x, int eb, int mb, bool finite_only) {
  const int bias = (1 << (eb - 1)) - 1;
  const uint32_t sign = std::signbit(x) ? 1u << (eb + mb) : 0;
  const double a = std::fabs(x);
  if (a == 0) return sign;
  int e = std::max(std::ilogb(a), 1 - bias);
  double q = std::nearbyint(std::ldexp(a, mb - e));
  if (q == std::ldexp(1.0, mb + 1)) q /= 2, ++e;
  const uint32_t top = finite_only ? (1u << (eb + mb)) - 1 : ((1u << eb) - 1) << mb;  // NaN where there is no infinity
  const auto mantissa = static_cast<uint32_t>(q);
  const uint32_t code = mantissa < (1u << mb) ? mantissa : (static_cast<uint32_t>(e + bias) << mb) + mantissa - (1u << mb);
  return sign | (e + bias >= 1 << eb || code > top ? top : code);
}

void encode(Complex v, isthmus_dtype t, std::byte *out) {
  const auto put = [out](auto value) { std::memcpy(out, &value, sizeof value); };
  switch (t) {
    case ISTHMUS_FLOAT16: return put(static_cast<uint16_t>(encode_small(v.real(), 5, 10, false)));
    case ISTHMUS_BFLOAT16: return put(static_cast<uint16_t>(encode_small(v.real(), 8, 7, false)));
    case ISTHMUS_FLOAT8_E4M3FN: return put(static_cast<uint8_t>(encode_small(v.real(), 4, 3, true)));
    case ISTHMUS_FLOAT8_E5M2: return put(static_cast<uint8_t>(encode_small(v.real(), 5, 2, false)));
    case ISTHMUS_FLOAT32: return put(static_cast<float>(v.real()));
    case ISTHMUS_FLOAT64: return put(v.real());
    case ISTHMUS_COMPLEX64: return put(std::complex<float>(v));
    default: return put(v);
  }
}

// Little-endian truncation to the type's width; bool is one byte.
void encode(uint64_t v, size_t bytes, std::byte *out) { std::memcpy(out, &v, bytes); }

uint64_t sign_extend(uint64_t v, size_t bytes) {
  const unsigned shift = static_cast<unsigned>(64 - 8 * bytes);
  return static_cast<uint64_t>(static_cast<int64_t>(v << shift) >> shift);
}

// Small integers: -3..4 for signed types and floats, 0..7 for unsigned ones, 0..1 for bool. A product has at most two
// factors that are not one, whatever the world size.
struct Source {
  isthmus_dtype dtype;
  isthmus_redop op;
  int world;
  uint64_t seed;

  uint64_t hash(int rank, size_t i) const { return mix(seed * 1000003 + static_cast<uint64_t>(rank) * 4099 + i); }
  bool is_factor(int rank, size_t i) const {
    return (i + static_cast<size_t>(rank) + seed) % static_cast<size_t>(world) < 2;
  }

  uint64_t integer(int rank, size_t i) const {
    const uint64_t h = hash(rank, i) >> 40;
    if (dtype == ISTHMUS_BOOL) return op == ISTHMUS_PROD || op == ISTHMUS_MIN || op == ISTHMUS_BAND ? h % 8 != 0 : h % 2;
    if (op == ISTHMUS_PROD) return is_factor(rank, i) ? 2 + h % 2 : 1;
    return is_signed(dtype) ? static_cast<uint64_t>(static_cast<int64_t>(h % 8) - 3) : h % 8;
  }

  Complex floating(int rank, size_t i) const {
    const uint64_t h = hash(rank, i) >> 40;
    const bool is_complex = dtype == ISTHMUS_COMPLEX64 || dtype == ISTHMUS_COMPLEX128;
    if (op == ISTHMUS_PROD) return !is_factor(rank, i) ? Complex(1) : is_complex ? Complex(1, 1) : Complex(2);
    return {static_cast<double>(h % 8) - 3, is_complex ? static_cast<double>(h / 8 % 8) - 3 : 0};
  }
};

uint64_t fold(const Source &s, size_t i, size_t bytes) {
  uint64_t sum = s.integer(0, i);
  const bool logical = s.dtype == ISTHMUS_BOOL;
  for (int r = 1; r < s.world; ++r) {
    const uint64_t v = s.integer(r, i);
    const bool less = is_signed(s.dtype) ? static_cast<int64_t>(v) < static_cast<int64_t>(sum) : v < sum;
    switch (s.op) {
      case ISTHMUS_PROD: sum *= v; break;
      case ISTHMUS_MIN: sum = less ? v : sum; break;
      case ISTHMUS_MAX: sum = less ? sum : v; break;
      case ISTHMUS_BAND: sum &= v; break;
      case ISTHMUS_BOR: sum |= v; break;
      case ISTHMUS_BXOR: sum ^= v; break;
      default: sum = logical ? (sum | v) : sum + v;
    }
  }
  if (s.op != ISTHMUS_AVG) return sum;
  const auto n = static_cast<uint64_t>(s.world);  // the wrapped sum, divided toward zero
  if (is_signed(s.dtype))
    return static_cast<uint64_t>(static_cast<int64_t>(sign_extend(sum, bytes)) / static_cast<int64_t>(n));
  return (bytes == 8 ? sum : sum & ((uint64_t{1} << (8 * bytes)) - 1)) / n;
}

Complex fold_floating(const Source &s, size_t i) {
  const double first = s.op == ISTHMUS_PREMUL_SUM ? premul_scale(0) : 1;
  Complex sum = s.floating(0, i) * first;
  for (int r = 1; r < s.world; ++r) {
    const Complex v = s.floating(r, i);
    switch (s.op) {
      case ISTHMUS_PROD: sum *= v; break;
      case ISTHMUS_MIN: sum = std::min(sum.real(), v.real()); break;
      case ISTHMUS_MAX: sum = std::max(sum.real(), v.real()); break;
      case ISTHMUS_PREMUL_SUM: sum += v * premul_scale(r); break;
      default: sum += v;
    }
  }
  if (s.op != ISTHMUS_AVG) return sum;
  if (s.dtype == ISTHMUS_FLOAT64 || s.dtype == ISTHMUS_COMPLEX128) return sum / static_cast<double>(s.world);
  const auto n = static_cast<float>(s.world);  // one division in float32, then the rounding to the type
  return {static_cast<float>(sum.real()) / n, static_cast<float>(sum.imag()) / n};
}

}  // namespace

double premul_scale(int rank) { return 1 + rank % 2; }

Pattern::Pattern(isthmus_dtype dtype, std::optional<isthmus_redop> op, int world, uint64_t seed) {
  const size_t bytes = isthmus_dtype_size(dtype);
  const Source s{dtype, op.value_or(ISTHMUS_SUM), world, seed};
  for (int r = 0; r < world; ++r) {
    Period p{std::vector<std::byte>(kPeriod * bytes), bytes};
    for (size_t i = 0; i < kPeriod; ++i) {
      std::byte *at = p.bytes.data() + i * bytes;
      if (op && is_floating(dtype)) encode(s.floating(r, i), dtype, at);
      else if (op || dtype == ISTHMUS_BOOL) encode(s.integer(r, i), bytes, at);
      else
        for (size_t b = 0; b < bytes; b += 8) encode(mix(s.hash(r, i) + b), std::min<size_t>(8, bytes - b), at + b);
    }
    ranks_.push_back(std::move(p));
  }
  if (!op) return;
  result_ = {std::vector<std::byte>(kPeriod * bytes), bytes};
  for (size_t i = 0; i < kPeriod; ++i) {
    std::byte *at = result_.bytes.data() + i * bytes;
    if (is_floating(dtype)) encode(fold_floating(s, i), dtype, at);
    else encode(fold(s, i, bytes), bytes, at);
  }
}

void fill(void *destination, const Period &period, uint64_t offset, uint64_t count) {
  auto *out = static_cast<std::byte *>(destination);
  for (uint64_t start = offset % kPeriod; count > 0; start = 0) {
    const uint64_t n = std::min(count, kPeriod - start);
    std::memcpy(out, period.bytes.data() + start * period.element, n * period.element);
    out += n * period.element;
    count -= n;
  }
}

uint64_t wrong(const void *data, const Period &period, uint64_t offset, uint64_t count) {
  const auto *in = static_cast<const std::byte *>(data);
  const size_t e = period.element;
  uint64_t bad = 0;
  for (uint64_t start = offset % kPeriod; count > 0; start = 0) {
    const uint64_t n = std::min(count, kPeriod - start);
    const std::byte *want = period.bytes.data() + start * e;
    if (std::memcmp(in, want, n * e) != 0)
      for (uint64_t i = 0; i < n; ++i) bad += std::memcmp(in + i * e, want + i * e, e) != 0;
    in += n * e;
    count -= n;
  }
  return bad;
}

}  // namespace isthmus::bench
