// What ranks tell each other beside the operations: what is kept of it, and for how long.
#include <gtest/gtest.h>

#include <thread>

#include "base/clock.hpp"
#include "engine/out_of_band.hpp"

namespace isthmus::engine {
namespace {

std::vector<std::byte> text(const char *s) {
  const auto *p = reinterpret_cast<const std::byte *>(s);
  return {p, p + std::char_traits<char>::length(s)};
}

TEST(OutOfBand, GivesTheOldestOfThatRankAboutThat) {
  OutOfBand o(3);
  o.came(1, 7, 1, text("first"));
  o.came(1, 8, 2, text("other"));
  o.came(1, 7, 3, text("second"));
  o.came(2, 7, 1, text("his"));
  EXPECT_FALSE(o.take(0, 7, 0));
  EXPECT_EQ(o.take(1, 7, 0), text("first"));
  EXPECT_TRUE(o.has_other(1, 7));
  EXPECT_EQ(o.take(1, 7, 0), text("second"));
  EXPECT_FALSE(o.take(1, 7, 0));
  EXPECT_EQ(o.take(1, 8, 0), text("other"));
  EXPECT_FALSE(o.has_other(1, 7));
  EXPECT_EQ(o.take(2, 7, 0), text("his"));
}

TEST(OutOfBand, ForgetsWhatItsSenderHasGivenUp) {
  OutOfBand o(2);
  o.came(1, 7, 1, text("old"));
  o.came(1, 7, 2, text("new"));
  o.withdrawn(1, 1);
  o.withdrawn(1, 9);
  EXPECT_EQ(o.take(1, 7, 0), text("new"));
  EXPECT_FALSE(o.take(1, 7, 0));
  EXPECT_TRUE(o.has_other(1, 8)) << "an error may still tell of it";
}

TEST(OutOfBand, KeepsOnlyTheNewestOfWhoSaysTooMuch) {
  OutOfBand o(2);
  for (uint64_t n = 0; n < 3 * OutOfBand::kMostKept; ++n) o.came(1, 7, n, text(std::to_string(n).c_str()));
  for (uint64_t n = 2 * OutOfBand::kMostKept; n < 3 * OutOfBand::kMostKept; ++n)
    EXPECT_EQ(o.take(1, 7, 0), text(std::to_string(n).c_str()));
  EXPECT_FALSE(o.take(1, 7, 0));
}

TEST(OutOfBand, DropsWhatNoRankCanHaveSaid) {
  OutOfBand o(2);
  o.came(2, 7, 1, text("nobody"));
  o.came(UINT32_MAX, 7, 1, text("nobody"));
  o.withdrawn(UINT32_MAX, 1);
  o.came(1, 7, 1, std::vector<std::byte>(OutOfBand::kMostBytes + 1));
  EXPECT_FALSE(o.take(1, 7, 0));
  o.came(1, 7, 2, std::vector<std::byte>(OutOfBand::kMostBytes));
  EXPECT_EQ(o.take(1, 7, 0)->size(), OutOfBand::kMostBytes);
}

TEST(OutOfBand, WaitsUntilItComesOrTheTimeHasPassed) {
  OutOfBand o(2);
  const int64_t begun = now_ns();
  EXPECT_FALSE(o.take(1, 7, begun + 20'000'000));
  EXPECT_GE(now_ns() - begun, 20'000'000);
  std::thread other([&] {
    o.came(1, 8, 1, text("not this"));
    o.came(1, 7, 2, text("this"));
  });
  EXPECT_EQ(o.take(1, 7, now_ns() + 60'000'000'000), text("this"));
  other.join();
}

}  // namespace
}  // namespace isthmus::engine
