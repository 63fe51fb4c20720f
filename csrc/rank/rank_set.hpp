// A set of the ranks of one communicator: a bit for each.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace isthmus::rank {

class RankSet {
 public:
  RankSet() = default;
  explicit RankSet(int world) : words_(words_of(world)) {}
  RankSet(std::span<const uint64_t> words) : words_(words.begin(), words.end()) {}
  static size_t words_of(int world) noexcept { return (static_cast<size_t>(world) + 63) / 64; }

  bool has(int rank) const noexcept { return words_[at(rank)] >> (rank & 63) & 1; }
  bool has(const RankSet &other) const noexcept {  // all of the other one; of the same world
    for (size_t i = 0; i < other.words_.size(); ++i)
      if ((other.words_[i] & ~(i < words_.size() ? words_[i] : 0)) != 0) return false;
    return true;
  }
  void add(int rank) noexcept { words_[at(rank)] |= uint64_t{1} << (rank & 63); }
  void add(const RankSet &other) noexcept {
    for (size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i) words_[i] |= other.words_[i];
  }
  int count() const noexcept {
    int n = 0;
    for (const uint64_t w : words_) n += std::popcount(w);
    return n;
  }
  std::vector<int> list() const {  // ascending
    std::vector<int> ranks;
    for (int r = 0; r < static_cast<int>(words_.size() * 64); ++r)
      if (has(r)) ranks.push_back(r);
    return ranks;
  }
  std::span<const uint64_t> words() const noexcept { return words_; }
  bool operator==(const RankSet &) const = default;

 private:
  static size_t at(int rank) noexcept { return static_cast<size_t>(rank) / 64; }
  std::vector<uint64_t> words_;
};

}  // namespace isthmus::rank
