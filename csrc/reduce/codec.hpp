// How lanes are read from and written to memory. Included by kernels.cpp only. Pointers are bytes of any alignment.
#pragma once

#include <hwy/highway.h>

namespace isthmus::reduce {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

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
  // elements in order cost a permutation each way.
  static constexpr bool kPaired = true;
  template <class D>
  static HWY_INLINE void load_pair(D d, const uint8_t *p, hn::Vec<D> &even, hn::Vec<D> &odd) {
    const hn::RebindToUnsigned<D> du;
    const auto both = hn::LoadU(du, reinterpret_cast<const uint32_t *>(p));
    even = hn::BitCast(d, hn::ShiftLeft<16>(both));
    odd = hn::BitCast(d, hn::And(both, hn::Set(du, 0xffff0000u)));
  }
  template <class D>
  static HWY_INLINE void store_pair(D, hn::Vec<D> even, hn::Vec<D> odd, uint8_t *p) {
    const hn::RebindToUnsigned<D> du;
    const hn::Repartition<uint16_t, D> dr;
    const auto low = hn::ShiftRight<16>(rounded(du, hn::BitCast(du, even))), high = rounded(du, hn::BitCast(du, odd));
    hn::StoreU(hn::BitCast(du, hn::OddEven(hn::BitCast(dr, high), hn::BitCast(dr, low))), du,
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
