// Many mutated inputs for every parser, the same ones in every run: fuzzing for builds that have no libFuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "targets.hpp"

namespace isthmus::fuzz {
namespace {

void mutate(Bytes &b, std::mt19937 &random, const std::vector<Bytes> &seeds) {
  const auto pick = [&](size_t below) {
    return below == 0 ? size_t{0} : std::uniform_int_distribution<size_t>(0, below - 1)(random);
  };
  constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
  for (size_t n = 1 + pick(4); n > 0; --n) {
    const size_t at = pick(b.size());
    switch (pick(7)) {
      case 0:
        if (!b.empty()) b[at] ^= static_cast<uint8_t>(1u << pick(8));
        break;
      case 1:
        if (!b.empty()) b[at] = static_cast<uint8_t>(pick(256));
        break;
      case 2:
        if (!b.empty()) b[at] = kEdges[pick(std::size(kEdges))];
        break;
      case 3: b.resize(at); break;
      case 4: b.insert(b.begin() + static_cast<ptrdiff_t>(at), pick(40), static_cast<uint8_t>(pick(256))); break;
      case 5:
        if (!b.empty())
          b.erase(b.begin() + static_cast<ptrdiff_t>(at), b.begin() + static_cast<ptrdiff_t>(at + pick(b.size() - at) / 2));
        break;
      case 6: {
        const Bytes &other = seeds[pick(seeds.size())];
        const size_t from = pick(other.size());
        b.resize(at);
        b.insert(b.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
        break;
      }
    }
  }
}

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, HoldsForSeedsAndForManyMutationsOfThem) {
  const Target &t = GetParam();
  const auto seeds = t.seeds();
  ASSERT_FALSE(seeds.empty());
  for (const Bytes &s : seeds) t.run(s.data(), s.size());
  t.run(reinterpret_cast<const uint8_t *>(""), 0);
  std::mt19937 random(20'240'607);
  Bytes b;
  for (int i = 0; i < t.replays; ++i) {
    if (i % 8 == 0) b = seeds[static_cast<size_t>(i / 8) % seeds.size()];  // else on from the last one
    mutate(b, random, seeds);
    if (b.size() > 20'000) b.resize(20'000);
    t.run(b.empty() ? reinterpret_cast<const uint8_t *>("") : b.data(), b.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Parsers, Replay, ::testing::ValuesIn(targets()),
                         [](const auto &p) { return std::string(p.param.name); });

}  // namespace
}  // namespace isthmus::fuzz
