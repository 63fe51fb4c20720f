// Shared by the tests that run every type through whole communicators: the factors of PREMUL_SUM, the order in which contributions are
// reduced (docs/explain/numbers.md), unequal shares.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.hpp"

namespace matrix {

using isthmus::DType;
using isthmus::RedOp;
using Data = std::vector<uint8_t>;

inline constexpr size_t kFactors = 5;
inline constexpr double kFactor[kFactors] = {0.5, -3.0, 1.1, 0.0, 1e-3};                    // of PREMUL_SUM, by rank
inline constexpr int64_t kWhole[kFactors] = {7, -3, 0x0123456789abcdef, 0, INT64_MIN + 1};  // of integers
inline constexpr double kExactFactor[kFactors] = {0.5, -3.0, 2.0, 0.0,
                                                  -1.0};  // with fill_exactly(): every product is a number of the type
enum class Factors { Any, Exact };
inline double factor(int rank, Factors of = Factors::Any) {
  const size_t at = static_cast<size_t>(rank) % kFactors;
  return of == Factors::Any ? kFactor[at] : kExactFactor[at];
}
inline const void *whole_factor(int rank) { return &kWhole[static_cast<size_t>(rank) % kFactors]; }

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
__attribute__((visibility("default"))) Data reduced(const std::vector<std::vector<int>> &islands, DType t, RedOp op,
                                                    std::vector<Data> given, size_t elements,
                                                    Factors factors = Factors::Any);
// Any numbers of the type (reduce_test::fill).
__attribute__((visibility("default"))) void fill(DType t, Data &data, std::mt19937_64 &random);
// Numbers whose sums and products over seven ranks every type holds exactly, so that it does not matter in which order a library takes
// them; of integers any, since they wrap around.
__attribute__((visibility("default"))) void fill_exactly(DType t, RedOp op, Data &data, std::mt19937_64 &random);

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
