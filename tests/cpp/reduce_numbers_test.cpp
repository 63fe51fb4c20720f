// The numbers of reduce.hpp one by one: every encoding, rounding, NaN, zeros, the control word; scale(), copy().
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cfenv>

#include "reduce_data.hpp"

namespace {

using namespace reduce_test;
using isthmus::reduce::LocalReduction;
using isthmus::reduce::Source;

constexpr DType kNarrow[] = {DType::Float16, DType::BFloat16, DType::Float8E4M3FN, DType::Float8E5M2};

uint32_t bits_of(float v) {
  uint32_t u;
  std::memcpy(&u, &v, 4);
  return u;
}
float float_of(uint32_t u) {
  float v;
  std::memcpy(&v, &u, 4);
  return v;
}

class Numbers : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(isthmus::reduce::force_target(GetParam().c_str())); }
  void TearDown() override { isthmus::reduce::force_target(nullptr); }

  static void reduce1(DType t, const void *src, bool partial_in, void *dst, bool partial_out, size_t n) {
    const Source s[] = {{src, partial_in}};
    isthmus::reduce::reduce({t, RedOp::Sum, s, {}, dst, nullptr, partial_out, 1, false}, n);
  }
  template <class T>
  static std::vector<T> reduce2(DType t, RedOp op, std::vector<T> a, std::vector<T> b) {
    const Source s[] = {{a.data(), false}, {b.data(), false}};
    std::vector<T> out(a.size());
    isthmus::reduce::reduce({t, op, s, {}, out.data(), nullptr, false, 1, false}, a.size());
    return out;
  }

  // Rounds all of `values` in one call and compares each code.
  static void expect_rounded(DType t, const std::vector<float> &values) {
    const auto f = reference::format_of(t);
    std::vector<uint8_t> out(values.size() * isthmus::dtype_size(t));
    reduce1(t, values.data(), true, out.data(), false, values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t code = f.width() == 8 ? out[i] : reference::load<uint16_t>(out.data(), i);
      ASSERT_EQ(code, reference::encode(f, values[i]))
          << isthmus::dtype_name(t) << " of " << values[i] << " (" << std::hex << bits_of(values[i]) << ")";
    }
  }
};

TEST_P(Numbers, EveryEncodingIsWidenedExactly) {
  for (const DType t : kNarrow) {
    const auto f = reference::format_of(t);
    const size_t codes = size_t{1} << f.width();
    std::vector<uint8_t> in(codes * isthmus::dtype_size(t));
    for (size_t c = 0; c < codes; ++c)
      f.width() == 8 ? reference::store(in.data(), c, static_cast<uint8_t>(c))
                     : reference::store(in.data(), c, static_cast<uint16_t>(c));
    std::vector<float> out(codes);
    reduce1(t, in.data(), false, out.data(), true, codes);
    for (size_t c = 0; c < codes; ++c)
      ASSERT_EQ(bits_of(out[c]), bits_of(reference::decode(f, static_cast<uint32_t>(c))))
          << isthmus::dtype_name(t) << " code " << c;
    // And back: every encoding is its own rounding, NaN becomes the canonical one.
    std::vector<uint8_t> back(in.size());
    reduce1(t, in.data(), false, back.data(), false, codes);
    for (size_t c = 0; c < codes; ++c) {
      const uint32_t code = f.width() == 8 ? back[c] : reference::load<uint16_t>(back.data(), c);
      ASSERT_EQ(code, reference::is_nan_code(f, static_cast<uint32_t>(c)) ? f.nan() : c)
          << isthmus::dtype_name(t) << " code " << c;
    }
  }
}

TEST_P(Numbers, RoundingIsToNearestEvenAtEveryBoundary) {
  for (const DType t : kNarrow) {
    const auto f = reference::format_of(t);
    std::vector<float> values;
    for (uint32_t code = 0; code < f.sign(); ++code) {
      // The point half-way to the next code and its neighbours on both sides, and the same below zero.
      const float a = reference::decode(f, code), b = reference::decode(f, code + 1);
      const auto middle = static_cast<float>(
          (static_cast<double>(a) + (std::isfinite(b) ? b : 2.0 * a - reference::decode(f, code - 1))) / 2);
      for (const float v : {a, middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, INFINITY)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
    expect_rounded(t, values);
  }
}

TEST_P(Numbers, RoundingOfRandomFloatsIsExact) {
  std::mt19937_64 random(7);
  for (const DType t : kNarrow) {
    std::vector<float> values;
    for (int i = 0; i < 400000; ++i)
      values.push_back(i % 2 ? float_of(static_cast<uint32_t>(random())) : float_value<float>(random));
    expect_rounded(t, values);
  }
}

// Every encoding meets codes of all kinds, so ties, sums that overflow and sums among subnormals are there. Eight neighbours lie in one
// vector: here all of them are usual numbers, there one is not.
TEST_P(Numbers, TheSumOfTwoEncodingsIsRoundedOnceWhateverTheyAre) {
  std::mt19937_64 random(11);
  for (const DType t : {DType::Float16, DType::BFloat16}) {
    const auto f = reference::format_of(t);
    std::vector<uint32_t> others{
        0,       f.sign(),           1,       f.sign() + 1, 1u << f.mantissa,      f.top() - 1, f.sign() + f.top() - 1,
        f.top(), f.sign() + f.top(), f.nan(), f.top() + 1,  f.sign() + f.top() + 1};
    while (others.size() < 28) others.push_back(static_cast<uint32_t>(random()) & 0xffff);
    for (const uint32_t other : others)
      for (const uint64_t divisor : {1, 3}) {
        std::vector<uint16_t> every(1 << 16), same(1 << 16, static_cast<uint16_t>(other)), out(1 << 16);
        for (size_t c = 0; c < every.size(); ++c) every[c] = static_cast<uint16_t>(c);
        const Source s[] = {{every.data()}, {same.data()}};
        const RedOp op = divisor == 1 ? RedOp::Sum : RedOp::Avg;
        isthmus::reduce::reduce({t, op, s, {}, out.data(), nullptr, false, divisor, false}, every.size());
        for (uint32_t c = 0; c < every.size(); ++c) {
          const float sum = reference::decode(f, c) + reference::decode(f, other);
          ASSERT_EQ(out[c], reference::encode(f, divisor == 1 ? sum : sum / 3))
              << isthmus::dtype_name(t) << " " << std::hex << c << " + " << other << " divisor " << divisor;
        }
      }
  }
}

TEST_P(Numbers, WhatIsOutOfRangeIsInfinityOrNaNInE4M3) {
  const float v[] = {464.0f,   464.001f, -480.0f,   INFINITY, -INFINITY, 61439.99f,
                     61440.0f, -1e9f,    65519.99f, 65520.0f, 3.4e38f};
  constexpr size_t n = sizeof v / sizeof *v;
  uint8_t e4m3[n], e5m2[n];
  uint16_t f16[n], bf16[n];
  reduce1(DType::Float8E4M3FN, v, true, e4m3, false, n);
  reduce1(DType::Float8E5M2, v, true, e5m2, false, n);
  reduce1(DType::Float16, v, true, f16, false, n);
  reduce1(DType::BFloat16, v, true, bf16, false, n);
  EXPECT_EQ(e4m3[0], 0x7e);
  for (size_t i = 1; i < n; ++i) EXPECT_EQ(e4m3[i], 0x7f) << v[i];
  EXPECT_EQ(e5m2[5], 0x7b);
  EXPECT_EQ(e5m2[6], 0x7c);
  EXPECT_EQ(e5m2[7], 0xfc);
  EXPECT_EQ(f16[8], 0x7bff);
  EXPECT_EQ(f16[9], 0x7c00);
  EXPECT_EQ(f16[4], 0xfc00);
  EXPECT_EQ(bf16[10], 0x7f80);
}

TEST_P(Numbers, NaNIsCanonicalAndMinMaxPropagateIt) {
  const float quiet = float_of(0xffc01234), signalling = float_of(0x7f800001);
  for (const RedOp op : {RedOp::Sum, RedOp::Prod, RedOp::Min, RedOp::Max}) {
    const auto out = reduce2<float>(DType::Float32, op, {quiet, 1.0f, signalling, INFINITY, 0.0f},
                                    {1.0f, quiet, -1.0f, signalling, quiet});
    for (const float v : out) EXPECT_EQ(bits_of(v), 0x7fc00000u) << isthmus::redop_name(op);
  }
  EXPECT_EQ(bits_of(reduce2<float>(DType::Float32, RedOp::Sum, {INFINITY}, {-INFINITY})[0]), 0x7fc00000u);
  EXPECT_EQ(bits_of(reduce2<float>(DType::Float32, RedOp::Prod, {INFINITY}, {0.0f})[0]), 0x7fc00000u);
  const auto wide = reduce2<double>(DType::Float64, RedOp::Sum, {INFINITY}, {-INFINITY});
  EXPECT_EQ(reference::load<uint64_t>(wide.data(), 0), 0x7ff8000000000000u);
}

TEST_P(Numbers, NegativeZeroIsLessThanZero) {
  const std::vector<float> a{-0.0f, 0.0f, -0.0f, 0.0f}, b{0.0f, -0.0f, -0.0f, 0.0f};
  const auto least = reduce2(DType::Float32, RedOp::Min, a, b), most = reduce2(DType::Float32, RedOp::Max, a, b);
  const auto sum = reduce2(DType::Float32, RedOp::Sum, a, b);
  const bool min_sign[] = {true, true, true, false}, max_sign[] = {false, false, true, false};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(std::signbit(least[static_cast<size_t>(i)]), min_sign[i]) << i;
    EXPECT_EQ(std::signbit(most[static_cast<size_t>(i)]), max_sign[i]) << i;
    EXPECT_EQ(std::signbit(sum[static_cast<size_t>(i)]), max_sign[i]) << i;
  }
}

TEST_P(Numbers, TheOrderOfGroupsIsKept) {
  // (1 + 1e8) + (-1e8 + 1) differs from ((1 + 1e8) - 1e8) + 1 in float32.
  const float v[4][1] = {{1.0f}, {1e8f}, {-1e8f}, {1.0f}};
  const Source s[] = {{v[0], false}, {v[1], false}, {v[2], false}, {v[3], false}};
  const uint32_t halves[] = {2, 4}, one[] = {4};
  float out = -1;
  isthmus::reduce::reduce({DType::Float32, RedOp::Sum, s, halves, &out, nullptr, false, 1, false}, 1);
  EXPECT_EQ(out, 0.0f);
  isthmus::reduce::reduce({DType::Float32, RedOp::Sum, s, one, &out, nullptr, false, 1, false}, 1);
  EXPECT_EQ(out, 1.0f);
  isthmus::reduce::reduce({DType::Float32, RedOp::Sum, s, {}, &out, nullptr, false, 1, false}, 1);
  EXPECT_EQ(out, 1.0f);
}

TEST_P(Numbers, AveragesOfIntegersGoTowardZero) {
  const auto average = [](DType t, auto a, auto b, uint64_t by) {
    const Source s[] = {{&a, false}, {&b, false}};
    decltype(a) out{};
    isthmus::reduce::reduce({t, RedOp::Avg, s, {}, &out, nullptr, false, by, false}, 1);
    return out;
  };
  EXPECT_EQ(average(DType::Int8, int8_t{-7}, int8_t{0}, 2), -3);
  EXPECT_EQ(average(DType::Int8, int8_t{100}, int8_t{100}, 2), -28);  // wraps first
  EXPECT_EQ(average(DType::UInt8, uint8_t{200}, uint8_t{100}, 300), 0);
  EXPECT_EQ(average(DType::Int32, INT32_MIN, int32_t{0}, 1), INT32_MIN);
  EXPECT_EQ(average(DType::Int32, INT32_MIN, int32_t{1}, 3), -715827882);
  EXPECT_EQ(average(DType::UInt32, UINT32_MAX, uint32_t{0}, 2), 0x7fffffffu);
  EXPECT_EQ(average(DType::Int64, INT64_MIN, int64_t{0}, 3), INT64_MIN / 3);
  EXPECT_EQ(average(DType::UInt64, UINT64_MAX, uint64_t{0}, 7), UINT64_MAX / 7);
}

// What a caller's thread may have set: flush to zero, denormals are zero, another rounding, traps.
class Control {
 public:
#if defined(__x86_64__)
  Control() : saved_(_mm_getcsr()) { _mm_setcsr(kOdd); }
  ~Control() { _mm_setcsr(saved_); }
  static bool unchanged() { return (_mm_getcsr() & 0xffc0u) == kOdd; }

 private:
  static constexpr unsigned kOdd = 0x1f80 | 0x8000 | 0x40 | 0x4000;  // FTZ, DAZ, round up
  unsigned saved_;
#else
  Control() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(kOdd));
  }
  ~Control() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }
  static bool unchanged() {
    uint64_t now;
    asm volatile("mrs %0, fpcr" : "=r"(now));
    return now == kOdd;
  }

 private:
  static constexpr uint64_t kOdd = uint64_t{1} << 24 | uint64_t{1} << 22;  // flush to zero, round up
  uint64_t saved_;
#endif
};

TEST_P(Numbers, TheCallersControlWordDoesNotMatterAndIsRestored) {
  std::mt19937_64 random(11);
  for (const DType t : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64, DType::Float8E4M3FN,
                        DType::Float8E5M2, DType::Complex64, DType::Complex128, DType::Int32}) {
    const size_t n = 333, size = isthmus::dtype_size(t);
    std::vector<uint8_t> a(n * size), b(n * size), plain(n * size), odd(n * size), scaled(n * size), odd_scaled(n * size);
    fill(t, a.data(), n, random);
    fill(t, b.data(), n, random);
    const Source s[] = {{a.data(), false}, {b.data(), false}};
    LocalReduction task{t, RedOp::Avg, s, {}, plain.data(), nullptr, false, 3, false};
    isthmus::reduce::reduce(task, n);
    if (isthmus::is_float(t)) isthmus::reduce::scale(scaled.data(), a.data(), n, t, 1.0 / 3);
    bool kept = false;
    {
      const Control control;
      task.dst = odd.data();
      isthmus::reduce::reduce(task, n);
      if (isthmus::is_float(t)) isthmus::reduce::scale(odd_scaled.data(), a.data(), n, t, 1.0 / 3);
      kept = Control::unchanged();
    }
    EXPECT_TRUE(kept) << isthmus::dtype_name(t);
    EXPECT_EQ(plain, odd) << isthmus::dtype_name(t);
    EXPECT_EQ(scaled, odd_scaled) << isthmus::dtype_name(t);
  }
  // A subnormal sum that flushing would lose.
  const float tiny = float_of(0x0020aac8);
  const float a[] = {tiny}, b[] = {0.0f};
  const Source s[] = {{a, false}, {b, false}};
  float out = 0;
  {
    const Control control;
    isthmus::reduce::reduce({DType::Float32, RedOp::Sum, s, {}, &out, nullptr, false, 1, false}, 1);
  }
  EXPECT_EQ(bits_of(out), 0x0020aac8u);
}

TEST_P(Numbers, ScaleMultipliesInTheAccumulatorType) {
  std::mt19937_64 random(13);
  for (const DType t :
       {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64, DType::Float8E4M3FN, DType::Float8E5M2}) {
    const size_t size = isthmus::dtype_size(t);
    for (const double factor : {0.1, 1.0 / 3, -2.0, 0.0, 1e300})
      for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{67}, size_t{5000}}) {
        Buffer in(n * size, random() % 64), out(n * size, random() % 64), expected(n * size, 0);
        fill(t, in.data(), n, random);
        for (size_t i = 0; i < n; ++i) {
          if (t == DType::Float32)
            reference::store(expected.data(), i,
                             reference::canonical(reference::load<float>(in.data(), i) * static_cast<float>(factor)));
          else if (t == DType::Float64)
            reference::store(expected.data(), i, reference::canonical(reference::load<double>(in.data(), i) * factor));
          else {
            const auto f = reference::format_of(t);
            const bool byte = f.width() == 8;
            const uint32_t code = byte ? reference::load<uint8_t>(in.data(), i) : reference::load<uint16_t>(in.data(), i);
            const uint32_t r = reference::encode(f, reference::decode(f, code) * static_cast<float>(factor));
            byte ? reference::store(expected.data(), i, static_cast<uint8_t>(r))
                 : reference::store(expected.data(), i, static_cast<uint16_t>(r));
          }
        }
        isthmus::reduce::scale(out.data(), in.data(), n, t, factor);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), n * size), 0)
            << isthmus::dtype_name(t) << " " << factor << " " << n;
        isthmus::reduce::scale(in.data(), in.data(), n, t, factor);
        ASSERT_EQ(std::memcmp(in.data(), expected.data(), n * size), 0) << "in place: " << isthmus::dtype_name(t);
        ASSERT_TRUE(in.edges_intact() && out.edges_intact());
      }
  }
}

TEST_P(Numbers, ScaleOfIntegersWraps) {
  std::mt19937_64 random(19);
  for (int i = 0; i < isthmus::kDTypeCount; ++i) {
    const auto t = static_cast<DType>(i);
    if (!isthmus::is_integer(t)) continue;
    const size_t size = isthmus::dtype_size(t);
    for (const uint64_t factor : {uint64_t{0}, uint64_t{1}, ~uint64_t{2}, uint64_t{0x8123456789abcdef}})
      for (const size_t n : {size_t{0}, size_t{1}, size_t{31}, size_t{67}, size_t{5000}}) {
        Buffer in(n * size, random() % 64), out(n * size, random() % 64), expected(n * size, 0);
        fill(t, in.data(), n, random);
        for (size_t k = 0; k < n; ++k) {
          uint64_t v = 0;
          std::memcpy(&v, in.data() + k * size, size);
          v *= factor;
          std::memcpy(expected.data() + k * size, &v, size);
        }
        isthmus::reduce::scale_integers(out.data(), in.data(), n, t, factor);
        ASSERT_EQ(std::memcmp(out.data(), expected.data(), n * size), 0)
            << isthmus::dtype_name(t) << " " << factor << " " << n;
        isthmus::reduce::scale_integers(in.data(), in.data(), n, t, factor);
        ASSERT_EQ(std::memcmp(in.data(), expected.data(), n * size), 0) << "in place: " << isthmus::dtype_name(t);
        ASSERT_TRUE(in.edges_intact() && out.edges_intact());
      }
  }
}

TEST_P(Numbers, CopyCopiesAllBytesAndNoOther) {
  std::mt19937_64 random(17);
  std::vector<size_t> sizes;
  for (size_t n = 0; n < 700; n += 1 + n / 16) sizes.push_back(n);
  for (const size_t n : {16383, 16384, 16385, 16447, 16448, 65537, 1 << 20}) sizes.push_back(n);
  for (const bool stream : {false, true})
    for (const size_t n : sizes)
      for (int i = 0; i < 6; ++i) {
        Buffer in(n, random() % 64), out(n, i ? random() % 64 : 0);
        fill(DType::UInt8, in.data(), n, random);
        isthmus::reduce::copy(out.data(), in.data(), n, stream);
        ASSERT_EQ(std::memcmp(out.data(), in.data(), n), 0) << n;
        ASSERT_TRUE(out.edges_intact()) << n;
      }
}

INSTANTIATE_TEST_SUITE_P(Reduce, Numbers, testing::ValuesIn(targets()), [](const auto &param) { return param.param; });

TEST(Targets, OneIsChosenAndUnknownOnesAreRefused) {
  isthmus::reduce::force_target(nullptr);
  const std::string chosen = isthmus::reduce::target();
  EXPECT_EQ(chosen, targets().front());
  EXPECT_FALSE(isthmus::reduce::force_target("mmx"));
  EXPECT_EQ(isthmus::reduce::target(), chosen);
  EXPECT_TRUE(isthmus::reduce::force_target("scalar"));
  EXPECT_STREQ(isthmus::reduce::target(), "scalar");
  EXPECT_TRUE(isthmus::reduce::force_target(nullptr));
  EXPECT_EQ(isthmus::reduce::target(), chosen);
}

}  // namespace
