#include "core/arithmetic.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

namespace rehearsal {
namespace {

// A small floating-point format. e4m3 has no infinities, and its largest exponent holds numbers, too. A value too large for a saturating
// format becomes the largest number, as in the vendors' conversions to fp8.
template <class B, int Exponent, int Mantissa, bool Infinities, bool Saturates>
struct Small {
  using Bits = B;
  using Acc = float;
  static constexpr int kBias = (1 << (Exponent - 1)) - 1;
  static constexpr unsigned kTop = (1u << Exponent) - 1;
  static constexpr unsigned kMask = (1u << Mantissa) - 1;
  static constexpr unsigned kSign = 1u << (Exponent + Mantissa);
  static constexpr unsigned kNaN = kSign - 1 - (Infinities ? kMask >> 1 : 0);
  static constexpr unsigned kInfinity = kTop << Mantissa;
  static constexpr unsigned kLargest = Infinities ? kInfinity - 1 : kNaN - 1;

  static float decode(unsigned b) {
    const unsigned e = (b >> Mantissa) & kTop, m = b & kMask;
    float v;
    if (Infinities ? e == kTop : (b & (kSign - 1)) == kNaN)
      v = Infinities && m == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    else
      v = e == 0 ? std::ldexp(static_cast<float>(m), 1 - kBias - Mantissa)
                 : std::ldexp(static_cast<float>(m | (kMask + 1)), static_cast<int>(e) - kBias - Mantissa);
    return b & kSign ? -v : v;
  }
  static unsigned encode(float f) {
    const unsigned sign = std::signbit(f) ? kSign : 0;
    if (std::isnan(f)) return kNaN;
    const unsigned over = Saturates ? kLargest : Infinities ? kInfinity : kNaN;
    if (std::isinf(f)) return sign | over;
    const double x = std::fabs(static_cast<double>(f));
    if (x == 0) return sign;
    int e = 0;
    std::frexp(x, &e);
    const int exponent = std::max(e - 1, 1 - kBias);
    const auto steps = static_cast<int64_t>(std::nearbyint(std::ldexp(x, Mantissa - exponent)));
    const int64_t bits =
        (static_cast<int64_t>(exponent + kBias - 1) << Mantissa) + steps;  // a carry moves the exponent by itself
    return sign | (bits > kLargest ? over : static_cast<unsigned>(bits));
  }

  static float load(Bits b) {
    using Table = std::array<float, size_t{1} << (8 * sizeof(Bits))>;
    static const Table *const table = [] {
      auto *t = new Table;
      for (unsigned i = 0; i < t->size(); ++i) (*t)[i] = decode(i);
      return t;
    }();
    return (*table)[b];
  }
  static Bits store(float f) { return static_cast<Bits>(encode(f)); }
};

struct BFloat {
  using Bits = uint16_t;
  using Acc = float;
  static float load(Bits b) {
    const uint32_t wide = uint32_t{b} << 16;
    float f;
    std::memcpy(&f, &wide, 4);
    return f;
  }
  static Bits store(float f) {
    uint32_t b;
    std::memcpy(&b, &f, 4);
    if (std::isnan(f)) return 0x7fff;
    return static_cast<Bits>((b + 0x7fff + ((b >> 16) & 1)) >> 16);
  }
};

template <class T>
struct Plain {
  using Bits = T;
  using Acc = T;
  static T load(T v) { return v; }
  static T store(T v) { return v; }
};

// Integers wrap around: the sum is that of the unsigned numbers of the same width.
template <class T, class F>
T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<(sizeof(T) < 4), uint32_t, std::make_unsigned_t<T>>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

template <Reduction R, class T>
T combine(T a, T b) {
  if constexpr (R == Reduction::Prod) return wrapping(a, b, [](auto x, auto y) { return x * y; });
  if constexpr (R == Reduction::Max) return std::is_floating_point_v<T> ? static_cast<T>(std::fmax(a, b)) : std::max(a, b);
  if constexpr (R == Reduction::Min) return std::is_floating_point_v<T> ? static_cast<T>(std::fmin(a, b)) : std::min(a, b);
  return wrapping(a, b, [](auto x, auto y) { return x + y; });
}

template <class Codec, Reduction R>
void reduce_as(const Contribution *c, int n, void *out_bytes, size_t count) {
  using Bits = typename Codec::Bits;
  using Acc = typename Codec::Acc;
  auto *out = static_cast<Bits *>(out_bytes);
  constexpr size_t kPart = 1024;
  Acc acc[kPart];
  for (size_t at = 0; at < count; at += kPart) {
    const size_t part = std::min(kPart, count - at);
    for (int r = n - 1; r >= 0; --r) {
      const Bits *in = static_cast<const Bits *>(c[r].data) + at;
      if constexpr (R == Reduction::ScaledSum) {
        Bits bits;
        std::memcpy(&bits, &c[r].factor, sizeof bits);
        const Acc factor = Codec::load(bits);
        const auto scaled = [&](Bits b) { return combine<Reduction::Prod>(Codec::load(b), factor); };
        for (size_t i = 0; i < part; ++i)
          acc[i] = r == n - 1 ? scaled(in[i]) : combine<Reduction::Sum>(acc[i], scaled(in[i]));
      } else if (r == n - 1) {
        for (size_t i = 0; i < part; ++i) acc[i] = Codec::load(in[i]);
      } else {
        for (size_t i = 0; i < part; ++i) acc[i] = combine<R>(acc[i], Codec::load(in[i]));
      }
    }
    if constexpr (R == Reduction::Avg)
      for (size_t i = 0; i < part; ++i) acc[i] = static_cast<Acc>(acc[i] / static_cast<Acc>(n));
    for (size_t i = 0; i < part; ++i) out[at + i] = Codec::store(acc[i]);
  }
}

template <class Codec>
void reduce_of(Reduction r, const Contribution *c, int n, void *out, size_t count) {
  switch (r) {
    case Reduction::Sum: return reduce_as<Codec, Reduction::Sum>(c, n, out, count);
    case Reduction::Prod: return reduce_as<Codec, Reduction::Prod>(c, n, out, count);
    case Reduction::Max: return reduce_as<Codec, Reduction::Max>(c, n, out, count);
    case Reduction::Min: return reduce_as<Codec, Reduction::Min>(c, n, out, count);
    case Reduction::Avg: return reduce_as<Codec, Reduction::Avg>(c, n, out, count);
    case Reduction::ScaledSum: return reduce_as<Codec, Reduction::ScaledSum>(c, n, out, count);
  }
}

}  // namespace

size_t type_size(Type t) noexcept {
  switch (t) {
    case Type::I8:
    case Type::U8:
    case Type::E4M3:
    case Type::E5M2: return 1;
    case Type::F16:
    case Type::BF16:
    case Type::I16:
    case Type::U16: return 2;
    case Type::I32:
    case Type::U32:
    case Type::F32: return 4;
    case Type::I64:
    case Type::U64:
    case Type::F64: return 8;
  }
  return 0;
}

void reduce(Type t, Reduction r, const Contribution *c, int n, void *out, size_t count) {
  switch (t) {
    case Type::I8: return reduce_of<Plain<int8_t>>(r, c, n, out, count);
    case Type::U8: return reduce_of<Plain<uint8_t>>(r, c, n, out, count);
    case Type::I16: return reduce_of<Plain<int16_t>>(r, c, n, out, count);
    case Type::U16: return reduce_of<Plain<uint16_t>>(r, c, n, out, count);
    case Type::I32: return reduce_of<Plain<int32_t>>(r, c, n, out, count);
    case Type::U32: return reduce_of<Plain<uint32_t>>(r, c, n, out, count);
    case Type::I64: return reduce_of<Plain<int64_t>>(r, c, n, out, count);
    case Type::U64: return reduce_of<Plain<uint64_t>>(r, c, n, out, count);
    case Type::F16: return reduce_of<Small<uint16_t, 5, 10, true, false>>(r, c, n, out, count);
    case Type::F32: return reduce_of<Plain<float>>(r, c, n, out, count);
    case Type::F64: return reduce_of<Plain<double>>(r, c, n, out, count);
    case Type::BF16: return reduce_of<BFloat>(r, c, n, out, count);
    case Type::E4M3: return reduce_of<Small<uint8_t, 4, 3, false, true>>(r, c, n, out, count);
    case Type::E5M2: return reduce_of<Small<uint8_t, 5, 2, true, true>>(r, c, n, out, count);
  }
}

}  // namespace rehearsal
