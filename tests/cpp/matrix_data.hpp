// Shared by the tests that run every type through whole communicators: the factors of PREMUL_SUM, the order in which contributions are
// folded (docs/numbers.md), unequal shares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "reduce_reference.hpp"

namespace matrix {

using isthmus::DType;
using isthmus::RedOp;
using Data = std::vector<uint8_t>;

inline constexpr size_t kFactors = 5;
inline constexpr double kFactor[kFactors] = {0.5, -3.0, 1.1, 0.0, 1e-3};                    // of PREMUL_SUM, by rank
inline constexpr int64_t kWhole[kFactors] = {7, -3, 0x0123456789abcdef, 0, INT64_MIN + 1};  // of integers
inline double factor(int rank) { return kFactor[static_cast<size_t>(rank) % kFactors]; }
inline const void *whole_factor(int rank) { return &kWhole[static_cast<size_t>(rank) % kFactors]; }

// Each element times the rank's factor in the accumulator type, rounded to the dtype.
inline void scale(DType t, Data &data, size_t count, int rank) {
  const auto multiply = [&]<class T>(T) {
    const auto by = static_cast<uint64_t>(kWhole[static_cast<size_t>(rank) % kFactors]);
    for (size_t i = 0; i < count; ++i)
      reference::store(data.data(), i, static_cast<T>(uint64_t{reference::load<T>(data.data(), i)} * by));
  };
  if (isthmus::is_integer(t)) {
    switch (isthmus::dtype_size(t)) {
      case 1: return multiply(uint8_t{});
      case 2: return multiply(uint16_t{});
      case 4: return multiply(uint32_t{});
      default: return multiply(uint64_t{});
    }
  }
  const double by = factor(rank);
  for (size_t i = 0; i < count; ++i) {
    if (t == DType::Float64) {
      reference::store(data.data(), i, reference::load<double>(data.data(), i) * by);
    } else if (t == DType::Float32) {
      reference::store(data.data(), i, reference::load<float>(data.data(), i) * static_cast<float>(by));
    } else {
      const auto f = reference::format_of(t);
      const bool one = f.width() == 8;
      const uint32_t code = one ? reference::load<uint8_t>(data.data(), i) : reference::load<uint16_t>(data.data(), i);
      const uint32_t scaled = reference::encode(f, reference::decode(f, code) * static_cast<float>(by));
      one ? reference::store(data.data(), i, static_cast<uint8_t>(scaled))
          : reference::store(data.data(), i, static_cast<uint16_t>(scaled));
    }
  }
}

// Islands by their lowest rank, ranks in order.
inline std::vector<std::vector<int>> islands_of(const std::vector<std::string> &label_of_rank) {
  std::vector<std::string> labels;
  std::vector<std::vector<int>> groups;
  for (size_t r = 0; r < label_of_rank.size(); ++r) {
    const auto at = static_cast<size_t>(std::find(labels.begin(), labels.end(), label_of_rank[r]) - labels.begin());
    if (at == labels.size()) {
      labels.push_back(label_of_rank[r]);
      groups.emplace_back();
    }
    groups[at].push_back(static_cast<int>(r));
  }
  return groups;
}

// What all ranks together make of what each was given.
inline Data folded(const std::vector<std::vector<int>> &islands, DType t, RedOp op, std::vector<Data> given,
                   size_t elements) {
  std::vector<isthmus::reduce::Source> sources;
  std::vector<uint32_t> ends;
  for (const auto &island : islands) {
    for (const int r : island) {
      Data &d = given[static_cast<size_t>(r)];
      if (op == RedOp::PremulSum) scale(t, d, elements, r);
      sources.push_back({d.data(), false});
    }
    ends.push_back(static_cast<uint32_t>(sources.size()));
  }
  Data out(elements * isthmus::dtype_size(t));
  isthmus::reduce::Fold fold{t, op, sources, ends};
  fold.dst = out.data();
  fold.divisor = op == RedOp::Avg ? given.size() : 1;
  reference::fold(fold, elements);
  return out;
}

// Unequal shares, the first one empty.
inline std::vector<uint64_t> shares(int world, uint64_t count) {
  std::vector<uint64_t> out;
  for (int r = 0; r < world; ++r) out.push_back(count * static_cast<uint64_t>(r) / static_cast<uint64_t>(world));
  return out;
}
inline uint64_t before(const std::vector<uint64_t> &counts, int rank) {
  uint64_t sum = 0;
  for (int r = 0; r < rank; ++r) sum += counts[static_cast<size_t>(r)];
  return sum;
}

}  // namespace matrix
