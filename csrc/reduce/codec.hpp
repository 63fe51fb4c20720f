// How lanes are read from and written to memory. Included by kernels.cpp only. Pointers are bytes of any alignment.
#pragma once

#include <hwy/highway.h>

namespace isthmus::reduce {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// What a codec of pairs asks of the contributions: nothing.
struct Unwatched {
  static constexpr bool kWatches = false;
  static constexpr bool all_usual() { return true; }
};

template <class T>
struct Plain {
  using Acc = T;
  static constexpr size_t kBytes = sizeof(T);
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t *p) {
    return hn::LoadU(d, reinterpret_cast<const T *>(p));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, uint8_t *p) {
    hn::StoreU(v, d, reinterpret_cast<T *>(p));
  }

#if HWY_TARGET == HWY_SSE4
  // Beside a codec that takes its elements in pairs. (Wider vectors would need permutations that cost more than they save.)
  static constexpr bool kPaired = sizeof(T) == 4;
  template <class D>
  using Watch = Unwatched;
  template <class D, class W>
  static HWY_INLINE void load_pair(D d, const uint8_t *p, hn::Vec<D> &even, hn::Vec<D> &odd, W &) {
    const auto low = load(d, p), high = load(d, p + sizeof(T) * hn::MaxLanes(d));
    even = hn::ConcatEven(d, high, low);
    odd = hn::ConcatOdd(d, high, low);
  }
  template <class D>
  static HWY_INLINE void store_pair(D d, hn::Vec<D> even, hn::Vec<D> odd, uint8_t *p) {
    store(d, hn::InterleaveLower(d, even, odd), p);
    store(d, hn::InterleaveUpper(d, even, odd), p + sizeof(T) * hn::MaxLanes(d));
  }
#endif
};

// Any non-zero byte is true; in lanes true is 1.
struct Truth : Plain<uint8_t> {
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t *p) {
    return hn::Min(hn::LoadU(d, p), hn::Set(d, uint8_t{1}));
  }
};

// Bytes in 16-bit lanes, because no instruction set multiplies bytes.
struct WideByte {
  using Acc = uint16_t;
  static constexpr size_t kBytes = 1;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t *p) {
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, D>(), p));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, uint8_t *p) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint8_t, D> d8;
    hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, hn::And(v, hn::Set(d, uint16_t{0xff})))), d8, p);
  }
};

// float16, float8_e4m3fn and float8_e5m2 as E exponent bits and M mantissa bits. Everything is done in integers but the
// subnormal range, where one float32 addition or subtraction does the normalising and the rounding: its operands are such
// that the sum's last bit is the format's. (That technique is Fabian Giesen's "half to float done quickly".)
template <class Raw, int E, int M, bool kInfinity>
struct Small {
  using Acc = float;
  static constexpr size_t kBytes = sizeof(Raw);
  static constexpr int kShift = 23 - M;
  static constexpr int kBias = (1 << (E - 1)) - 1;
  static constexpr int kSign = 1 << (E + M);
  static constexpr int kTop = ((1 << E) - 1) << M;                          // infinity, or the first code of the last binade
  static constexpr int kLargest = kInfinity ? kTop - 1 : kSign - 2;         // largest finite code
  static constexpr int kNaN = kInfinity ? kTop | 1 << (M - 1) : kSign - 1;  // canonical
  static constexpr int kRebias = (127 - kBias) << 23;
  static constexpr int kMinNormal = kRebias + (1 << 23);             // its float32 bits
  static constexpr int kRounder = (127 + 1 - kBias - M + 23) << 23;  // float32 whose last bit is the smallest subnormal

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t *p) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<Raw, D> dr;
    const auto code = hn::PromoteTo(di, hn::LoadU(dr, reinterpret_cast<const Raw *>(p)));
    const auto magnitude = hn::And(code, hn::Set(di, kSign - 1));
    const auto sign = hn::ShiftLeft<31 - E - M>(hn::And(code, hn::Set(di, kSign)));
    auto bits = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(di, kRebias));
    const auto normalised = hn::BitCast(
        di, hn::Sub(hn::BitCast(d, hn::Add(bits, hn::Set(di, 1 << 23))), hn::BitCast(d, hn::Set(di, kMinNormal))));
    if constexpr (kInfinity) {
      constexpr int lift = (255 - ((1 << E) - 1) - 127 + kBias) << 23;
      bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kLargest)), hn::Add(bits, hn::Set(di, lift)), bits);
    } else {
      bits = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kLargest)), hn::Set(di, 0x7fc00000), bits);
    }
    bits = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 1 << M)), normalised, bits);
    return hn::BitCast(d, hn::Or(bits, sign));
  }

  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> v, uint8_t *p) {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<Raw, D> dr;
    const auto bits = hn::BitCast(di, v);
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7fffffff));
    const auto sign = hn::BitCast(di, hn::ShiftRight<31 - E - M>(hn::BitCast(du, hn::Xor(bits, magnitude))));
    const auto odd = hn::And(hn::ShiftRight<kShift>(magnitude), hn::Set(di, 1));
    const auto half = hn::Set(di, (1 << (kShift - 1)) - 1 - kRebias);
    auto code = hn::ShiftRight<kShift>(hn::Add(hn::Add(magnitude, half), odd));
    const auto rounder = hn::Set(di, kRounder);
    const auto tiny = hn::Sub(hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, rounder))), rounder);
    code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, kMinNormal)), tiny, code);
    if constexpr (kInfinity) {
      code = hn::Or(hn::Min(code, hn::Set(di, kTop)), sign);
      code = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, 0x7f800000)), hn::Set(di, kNaN), code);
    } else {
      code = hn::IfThenElse(hn::Gt(code, hn::Set(di, kLargest)), hn::Set(di, kNaN), hn::Or(code, sign));
    }
    hn::StoreU(hn::DemoteTo(dr, code), dr, reinterpret_cast<Raw *>(p));
  }
};
using Float8E4M3 = Small<uint8_t, 4, 3, false>;
using Float8E5M2 = Small<uint8_t, 5, 2, true>;

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
// These convert in one instruction, with the same result (the NaN that is stored is already canonical).
struct Float16 {
  using Acc = float;
  static constexpr size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t *p) {
    const hn::Rebind<hwy::float16_t, D> dh;
    const hn::Rebind<uint16_t, D> dr;
    return hn::PromoteTo(d, hn::BitCast(dh, hn::LoadU(dr, reinterpret_cast<const uint16_t *>(p))));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> v, uint8_t *p) {
    const hn::Rebind<hwy::float16_t, D> dh;
    const hn::Rebind<uint16_t, D> dr;
    hn::StoreU(hn::BitCast(dr, hn::DemoteTo(dh, v)), dr, reinterpret_cast<uint16_t *>(p));
  }
};
#elif HWY_TARGET == HWY_SSE4
// Two vectors' worth at once, as BFloat16 has them, where every contribution is zero or normal. Others are for Small.
//   - Read: the code's bits are those of a float32 that is 2^112 times too small, so one multiplication does it. (Of a subnormal
//     contribution too, but processors take a hundred cycles for a product with a subnormal float32.)
//   - Written: 2^13 times the power of two below the magnitude is added. The sum's last bit is worth the format's last bit, so the
//     addition has rounded. Below the normal range the power is that of the smallest normal.
struct PairedFloat16 : Small<uint16_t, 5, 10, true> {
  static constexpr bool kPaired = true;
  template <class D>
  struct Watch {
    static constexpr bool kWatches = true;
    using Codes = hn::Vec<hn::Repartition<uint16_t, D>>;
    Codes most, least;  // of the magnitudes, doubled; and of those less one, where zero comes last
    bool any = false;
    HWY_INLINE void see(Codes codes) {
      const hn::Repartition<uint16_t, D> dr;
      const auto doubled = hn::Add(codes, codes), below = hn::Sub(doubled, hn::Set(dr, uint16_t{1}));
      most = any ? hn::Max(most, doubled) : doubled;
      least = any ? hn::Min(least, below) : below;
      any = true;
    }
    HWY_INLINE bool all_usual() const {
      const hn::Repartition<uint16_t, D> dr;
      constexpr uint16_t infinity = 2 * 0x7c00, normal = 2 * 0x0400;
      const auto odd_ones = hn::Or(hn::SaturatedSub(most, hn::Set(dr, uint16_t{infinity - 1})),
                                   hn::SaturatedSub(hn::Set(dr, uint16_t{normal - 1}), least));
      return _mm_testz_si128(odd_ones.raw, odd_ones.raw) != 0;
    }
  };
  template <class D>
  static HWY_INLINE void load_pair(D d, const uint8_t *p, hn::Vec<D> &even, hn::Vec<D> &odd, Watch<D> &watch) {
    const hn::RebindToSigned<D> di;
    const hn::Repartition<uint16_t, D> dr;
    const auto both = hn::LoadU(di, reinterpret_cast<const int32_t *>(p));
    watch.see(hn::BitCast(dr, both));
    const auto place =
        hn::Set(di, static_cast<int32_t>(0x8fffe000));  // sign, exponent and mantissa of a code that is 3 places down
    const auto up = hn::BitCast(d, hn::Set(di, (127 + 112) << 23));
    even = hn::Mul(hn::BitCast(d, hn::And(hn::ShiftRight<3>(hn::ShiftLeft<16>(both)), place)), up);
    odd = hn::Mul(hn::BitCast(d, hn::And(hn::ShiftRight<3>(both), place)), up);
  }
  template <class D>
  static HWY_INLINE void store_pair(D d, hn::Vec<D> even, hn::Vec<D> odd, uint8_t *p) {
    const hn::RebindToSigned<D> di;
    const hn::Repartition<uint16_t, D> dr;
    const auto signs = hn::OddEven(hn::BitCast(dr, odd), hn::BitCast(dr, hn::ShiftRight<16>(hn::BitCast(di, even))));
    const auto codes =
        hn::OddEven(hn::BitCast(dr, hn::ShiftLeft<16>(magnitude(d, odd))), hn::BitCast(dr, magnitude(d, even)));
    hn::StoreU(hn::Or(codes, hn::And(signs, hn::Set(dr, uint16_t{0x8000}))), dr, reinterpret_cast<uint16_t *>(p));
  }

 private:
  // The code without its sign, in the lower half; the upper half is of no use. No lane is NaN.
  template <class D>
  static HWY_INLINE auto magnitude(D d, hn::Vec<D> v) {
    const hn::RebindToSigned<D> di;
    const auto m = hn::Min(hn::Abs(v), hn::BitCast(d, hn::Set(di, (127 + 16) << 23)));  // 2^16 becomes infinity's code
    const auto power = hn::Max(hn::And(hn::BitCast(di, m), hn::Set(di, 0x7f800000)), hn::Set(di, (127 - 14) << 23));
    const auto sum = hn::Add(m, hn::BitCast(d, hn::Add(power, hn::Set(di, 13 << 23))));
    const auto bits = hn::Sub(hn::BitCast(di, sum), hn::Set(di, (127 - 14 + 13) << 23));
    return hn::Add(hn::ShiftRight<13>(bits), bits);  // the exponent's place, and the rounded mantissa with its leading one
  }
};
using Float16 = PairedFloat16;
#else
using Float16 = Small<uint16_t, 5, 10, true>;
#endif

// The upper half of a float32. Highway's own DemoteTo(bfloat16) truncates, so the rounding is done here.
struct BFloat16 {
  using Acc = float;
  static constexpr size_t kBytes = 2;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const uint8_t *p) {
    const hn::RebindToSigned<D> di;
    const hn::Rebind<uint16_t, D> dr;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(di, hn::LoadU(dr, reinterpret_cast<const uint16_t *>(p)))));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> v, uint8_t *p) {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    const hn::Rebind<uint16_t, D> dr;
    const auto code = hn::ShiftRight<16>(rounded(du, hn::BitCast(du, v)));
    hn::StoreU(hn::DemoteTo(dr, hn::BitCast(di, code)), dr, reinterpret_cast<uint16_t *>(p));
  }

#if HWY_TARGET != HWY_SCALAR
  // Two vectors' worth of elements, those at even places in one and those at odd places in the other: that costs a shift and a mask, where
  // elements in order cost a permutation each way. Of a NaN in them only the upper half counts: it comes from a contribution, whose
  // lower half is 0, or from the processor, whose own NaN is like that. So store_pair() can do for a NaN what the last step does elsewhere.
  static constexpr bool kPaired = true;
  template <class D>
  using Watch = Unwatched;
  template <class D>
  static HWY_INLINE void load_pair(D d, const uint8_t *p, hn::Vec<D> &even, hn::Vec<D> &odd, Unwatched &) {
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t *>(p));
    even = hn::BitCast(d, hn::ShiftLeft<16>(both));
    odd = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
  }
  // A half is added, so the upper half is rounded, away from zero at a tie. At a tie the lower half is 0 now: then the saturated sum is
  // 0xfffe, else 0xffff, which is the mask that makes the upper half even.
  template <class D>
  static HWY_INLINE void store_pair(D, hn::Vec<D> even, hn::Vec<D> odd, uint8_t *p) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, D> dr;
    const hn::RebindToSigned<decltype(dr)> di;
    const auto half = hn::Set(du, 0x8000u);
    const auto e = hn::Add(hn::BitCast(du, even), half), o = hn::Add(hn::BitCast(du, odd), half);
    const auto high = hn::OddEven(hn::BitCast(dr, o), hn::BitCast(dr, hn::ShiftRight<16>(e)));
    const auto low = hn::OddEven(hn::BitCast(dr, hn::ShiftLeft<16>(o)), hn::BitCast(dr, e));
    const auto code = hn::BitCast(di, hn::And(high, hn::SaturatedAdd(low, hn::Set(dr, uint16_t{0xfffe}))));
    const auto magnitude = hn::BitCast(di, hn::And(high, hn::Set(dr, uint16_t{0x7fff})));
    const auto nan = hn::Gt(magnitude, hn::Set(di, int16_t{0x7f80}));
    hn::StoreU(hn::BitCast(du, hn::IfThenElse(nan, hn::Set(di, int16_t{0x7fc0}), code)), du,
               reinterpret_cast<uint32_t *>(p));
  }
#endif

 private:
  // The upper half is the result. The only NaN that comes here is the canonical one, 0x7fc00000, which rounds to 0x7fc0.
  template <class D>
  static HWY_INLINE hn::Vec<D> rounded(D du, hn::Vec<D> bits) {
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    return hn::Add(hn::Add(bits, hn::Set(du, 0x7fffu)), odd);
  }
};

template <class Codec>
concept Paired = Codec::kPaired;

}  // namespace
}  // namespace isthmus::reduce
