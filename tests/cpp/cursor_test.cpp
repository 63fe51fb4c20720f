// The cursor over a plan's list goes through the steps as the head of plan.hpp says, written out here as three loops.
#include "plan/cursor.hpp"

#include <gtest/gtest.h>

#include <random>
#include <tuple>
#include <vector>

namespace isthmus::plan {
namespace {

using Visit = std::tuple<uint32_t, const Step *, uint32_t, bool>;  // turn, step, chunk, first of its stage

TEST(Cursor, VisitsTheStepsInTheOrderThatAPlanMeans) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint32_t most) { return std::uniform_int_distribution<uint32_t>(0, most)(random); };
    std::vector<Stage> stages(pick(4));
    uint32_t all = 0;
    for (Stage &s : stages) {
      s.skew = pick(3);
      s.step = all;
      all += s.steps = pick(3);
    }
    const std::vector<Step> steps(all);
    const uint32_t chunks = pick(5);
    std::vector<Visit> expected, seen;
    for (uint32_t t = 0; t < chunks + 4; ++t)
      for (const Stage &s : stages)
        for (uint32_t i = 0; i < s.steps; ++i)
          if (t >= s.skew && t - s.skew < chunks) expected.emplace_back(t, &steps[s.step + i], t - s.skew, i == 0);
    for (Cursor at(stages, steps, chunks); !at.done(); at.next())
      seen.emplace_back(at.turn(), &at.step(), at.chunk(), at.begins_stage());
    ASSERT_EQ(seen, expected) << "seed " << seed;
  }
}

TEST(Cursor, OfNothingIsDone) {
  EXPECT_TRUE(Cursor().done());
  const std::vector<Stage> stages(1);
  EXPECT_TRUE(Cursor(stages, {}, 3).done());
}

}  // namespace
}  // namespace isthmus::plan
