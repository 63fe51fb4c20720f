// Shared by the tests of reduce/: targets of this processor, buffers with guarded edges, contributions of every kind.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "reduce_reference.hpp"

namespace reduce_test {

using isthmus::DType;
using isthmus::RedOp;

inline std::vector<std::string> targets() {
  std::vector<std::string> found;
  for (const char *name : {"avx512", "avx2", "sse4", "neon", "scalar"})
    if (isthmus::reduce::force_target(name)) found.push_back(name);
  isthmus::reduce::force_target(nullptr);
  return found;
}

// `bytes` bytes at a chosen distance from a cache line, with a pattern before and behind that must survive.
class Buffer {
 public:
  Buffer(size_t bytes, size_t offset) : bytes_(bytes), store_(bytes + offset + 3 * kEdge, kPattern) {
    const auto address = reinterpret_cast<uintptr_t>(store_.data());
    begin_ = (kEdge - address % kEdge) % kEdge + kEdge + offset;
  }
  uint8_t *data() { return store_.data() + begin_; }
  const uint8_t *data() const { return store_.data() + begin_; }
  size_t size() const { return bytes_; }
  bool edges_intact() const {
    for (size_t i = 0; i < begin_; ++i)
      if (store_[i] != kPattern) return false;
    for (size_t i = begin_ + bytes_; i < store_.size(); ++i)
      if (store_[i] != kPattern) return false;
    return true;
  }

 private:
  static constexpr size_t kEdge = 64;
  static constexpr uint8_t kPattern = 0xa5;
  size_t bytes_, begin_ = 0;
  std::vector<uint8_t> store_;
};

template <class T>
T float_value(std::mt19937_64 &random) {
  const uint64_t r = random();
  using L = std::numeric_limits<T>;
  switch (r % 64) {
    case 0: return (r >> 8) % 4 ? T{0} : -L::quiet_NaN();
    case 1: return r >> 63 ? -L::infinity() : L::infinity();
    case 2:
    case 3:
    case 4: return r >> 63 ? -T{0} : T{0};
    case 5: return L::denorm_min() * static_cast<T>((r >> 8) % 1000);
    case 6: return r >> 63 ? -L::max() : L::max();
    case 7: return L::min();
    default: break;
  }
  // Magnitudes from 2^-12 to 2^12 with all mantissa bits: sums round, products stay finite for long.
  const T mantissa = static_cast<T>(static_cast<double>(r >> 11) * 0x1p-53 + 1.0);
  const T v = std::ldexp(mantissa, static_cast<int>(random() % 25) - 12);
  return r & 256 ? v : -v;
}

inline void fill(DType t, void *p, size_t count, std::mt19937_64 &random) {
  if (t == DType::Float32 || t == DType::Complex64) {
    for (size_t i = 0; i < count * (t == DType::Complex64 ? 2 : 1); ++i) reference::store(p, i, float_value<float>(random));
  } else if (t == DType::Float64 || t == DType::Complex128) {
    for (size_t i = 0; i < count * (t == DType::Complex128 ? 2 : 1); ++i)
      reference::store(p, i, float_value<double>(random));
  } else if (reference::is_narrow(t)) {
    const auto f = reference::format_of(t);
    for (size_t i = 0; i < count; ++i) {
      // Half of them any code at all, half of them rounded from ordinary numbers.
      const uint64_t r = random();
      auto code = static_cast<uint32_t>(r >> 8) & (2 * f.sign() - 1);
      if (r & 1 || reference::is_nan_code(f, code)) code = reference::encode(f, float_value<float>(random));
      f.width() == 8 ? reference::store(p, i, static_cast<uint8_t>(code))
                     : reference::store(p, i, static_cast<uint16_t>(code));
    }
  } else {
    for (size_t i = 0; i < count * isthmus::dtype_size(t); ++i) {
      const uint64_t r = random();
      reference::store(p, i, static_cast<uint8_t>(t == DType::Bool && r & 256 ? 0 : r));
    }
  }
}

}  // namespace reduce_test
