// What ranks tell each other beside the operations: what is kept of it, and for how long.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "base/clock.hpp"
#include "rank/out_of_band.hpp"

namespace isthmus::rank {
namespace {

// Of the oldest message.
std::optional<std::vector<std::byte>> take(OutOfBand &o, int from, uint64_t about, int64_t until_ns = 0) {
  auto message = o.take(from, about, until_ns);
  return message ? std::optional(std::move(message->bytes)) : std::nullopt;
}

std::vector<std::byte> text(const char *s) {
  const auto *p = reinterpret_cast<const std::byte *>(s);
  return {p, p + std::char_traits<char>::length(s)};
}

constexpr uint64_t kSized = OutOfBand::kOfOneSize | 8;  // a subject of which all ranks say as much

TEST(OutOfBand, GivesTheOldestOfThatRankAboutThat) {
  OutOfBand o(3);
  o.came(1, 7, 1, text("first"));
  o.came(1, kSized, 2, text("other"));
  o.came(1, 7, 3, text("second"));
  o.came(2, 7, 1, text("his"));
  EXPECT_FALSE(take(o, 0, 7));
  EXPECT_EQ(take(o, 1, 7), text("first"));
  EXPECT_TRUE(o.has_other(1, std::array<uint64_t, 1>{7}));
  EXPECT_EQ(take(o, 1, 7), text("second"));
  EXPECT_FALSE(take(o, 1, 7));
  EXPECT_EQ(take(o, 1, kSized), text("other"));
  EXPECT_FALSE(o.has_other(1, std::array<uint64_t, 1>{7}));
  o.came(1, 9, 4, text("of many sizes"));
  EXPECT_FALSE(o.has_other(1, std::array<uint64_t, 1>{7}));
  EXPECT_EQ(take(o, 2, 7), text("his"));
}

TEST(OutOfBand, ForgetsWhatItsSenderHasGivenUp) {
  OutOfBand o(2);
  o.came(1, kSized, 1, text("old"));
  o.came(1, kSized, 2, text("new"));
  o.withdrawn(1, 1);
  o.withdrawn(1, 9);
  EXPECT_EQ(take(o, 1, kSized), text("new"));
  EXPECT_FALSE(take(o, 1, kSized));
  EXPECT_TRUE(o.has_other(1, std::array<uint64_t, 1>{8})) << "an error may still tell of it";
}

TEST(OutOfBand, KnowsOfAMessageThatWasTakenThatItsSenderHasGivenItUpSince) {
  OutOfBand o(2);
  o.came(1, 7, 1, text("old"));
  o.came(1, 7, 2, text("new"));
  const auto old = o.take(1, 7, 0), newer = o.take(1, 7, 0);
  o.withdrawn(1, 1);
  EXPECT_TRUE(o.was_withdrawn(1, *old));
  EXPECT_FALSE(o.was_withdrawn(1, *newer));
}

TEST(OutOfBand, GivesWhatWasSaidInThatTurnAlone) {
  OutOfBand o(2);
  o.came(1, {7, 0}, 1, text("first turn"));
  o.came(1, {7, 1}, 2, text("second turn"));
  o.came(1, {8, 0}, 3, text("other"));
  EXPECT_EQ(o.take(1, {7, 1}, 0)->bytes, text("second turn"));
  EXPECT_FALSE(o.take(1, {7, 1}, 0));
  EXPECT_TRUE(o.has(1, {7, 0}));
  o.drop_turns(7, 1);
  EXPECT_FALSE(o.has(1, {7, 0}));
  EXPECT_TRUE(o.has(1, {8, 0}));
}

TEST(OutOfBand, DropsWhatNobodyWantsAnyMoreAlsoWhereItComesLater) {
  OutOfBand o(2);
  o.came(1, 7, 1, text("early"));
  o.came(1, 8, 2, text("other"));
  o.forget(7);
  o.came(1, 7, 3, text("late"));
  EXPECT_FALSE(o.has(1, 7));
  EXPECT_FALSE(o.has_other(1, std::array<uint64_t, 1>{8}));
  EXPECT_EQ(take(o, 1, 8), text("other"));
}

TEST(OutOfBand, HasWhatMayBeTaken) {
  OutOfBand o(2);
  EXPECT_FALSE(o.has(1, 7));
  o.came(1, 7, 1, text("word"));
  EXPECT_TRUE(o.has(1, 7));
  EXPECT_FALSE(o.has(1, 8));
  EXPECT_FALSE(o.has(0, 7));
  o.withdrawn(1, 1);
  EXPECT_FALSE(o.has(1, 7)) << "nobody takes what was withdrawn";
}

TEST(OutOfBand, KeepsOnlyTheNewestOfWhoSaysTooMuch) {
  OutOfBand o(2);
  const uint64_t most = o.most_kept();
  for (uint64_t n = 0; n < 3 * most; ++n) o.came(1, 7, n, text(std::to_string(n).c_str()));
  for (uint64_t n = 2 * most; n < 3 * most; ++n) EXPECT_EQ(take(o, 1, 7), text(std::to_string(n).c_str()));
  EXPECT_FALSE(take(o, 1, 7));
}

TEST(OutOfBand, OfWhoSaysTooMuchWhatItHasGivenUpGoesFirst) {
  OutOfBand o(2);
  for (uint64_t n = 0; n < o.most_kept(); ++n) o.came(1, 7, n, text(std::to_string(n).c_str()));
  o.withdrawn(1, 5);
  o.came(1, 7, 99, text("new"));
  for (uint64_t n = 0; n < o.most_kept(); ++n) {
    if (n == 5) continue;
    EXPECT_EQ(take(o, 1, 7), text(std::to_string(n).c_str()));
  }
  EXPECT_EQ(take(o, 1, 7), text("new"));
}

TEST(OutOfBand, WhatIsGivenBackIsTheOldestAgainAndCanBeWithdrawn) {
  OutOfBand o(2);
  o.came(1, 7, 1, text("first"));
  o.came(1, 7, 2, text("second"));
  o.give_back(1, *o.take(1, 7, 0));
  auto first = o.take(1, 7, 0);
  EXPECT_EQ(first->bytes, text("first"));
  o.give_back(1, std::move(*first));
  o.withdrawn(1, 1);
  EXPECT_EQ(take(o, 1, 7), text("second"));
  o.came(1, 7, 3, text("third"));
  auto third = o.take(1, 7, 0);
  o.withdrawn(1, 3);  // while somebody has it
  o.give_back(1, std::move(*third));
  EXPECT_FALSE(take(o, 1, 7));
}

TEST(OutOfBand, DropsWhatNoRankCanHaveSaid) {
  OutOfBand o(2);
  o.came(2, 7, 1, text("nobody"));
  o.came(UINT32_MAX, 7, 1, text("nobody"));
  o.withdrawn(UINT32_MAX, 1);
  o.replace(2, 7, 1, text("nobody"));
  o.came(1, 7, 1, std::vector<std::byte>(OutOfBand::kMostMessage + 1));
  EXPECT_FALSE(take(o, 1, 7));
  o.came(1, 7, 2, std::vector<std::byte>(OutOfBand::kMostMessage));
  EXPECT_EQ(take(o, 1, 7)->size(), OutOfBand::kMostMessage);
}

TEST(OutOfBand, WhatReplacesIsAllThatTheRankHasSaidAboutThat) {
  OutOfBand o(3);
  o.came(1, 8, 1, text("other"));
  for (uint64_t n = 2; n < 100; ++n) o.replace(1, 7, n, text(std::to_string(n).c_str()));
  o.replace(2, 7, 1, text("his"));
  EXPECT_EQ(take(o, 1, 7), text("99"));
  EXPECT_FALSE(take(o, 1, 7));
  EXPECT_EQ(take(o, 1, 8), text("other")) << "and nothing else was dropped for it";
  EXPECT_EQ(take(o, 2, 7), text("his"));
}

TEST(OutOfBand, KeepsWhatAllRanksHaveContributedAtMost) {
  const int world = 1000;
  OutOfBand o(world);
  const size_t whole = world * (OutOfBand::kMostBytes + 2 * sizeof(uint64_t));
  EXPECT_GE(o.most_kept() * OutOfBand::kMostMessage, whole + 15 * OutOfBand::kMostMessage);
}

TEST(OutOfBand, WaitsUntilItComesOrTheTimeHasPassed) {
  OutOfBand o(2);
  const int64_t begun = now_ns();
  EXPECT_FALSE(take(o, 1, 7, begun + 20'000'000));
  EXPECT_GE(now_ns() - begun, 20'000'000);
  std::thread other([&] {
    o.came(1, 8, 1, text("not this"));
    o.came(1, 7, 2, text("this"));
  });
  EXPECT_EQ(take(o, 1, 7, now_ns() + 60'000'000'000), text("this"));
  other.join();
}

}  // namespace
}  // namespace isthmus::rank
