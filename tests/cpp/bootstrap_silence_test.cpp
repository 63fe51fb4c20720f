// Silence: when a process that says nothing is taken for lost. Times are numbers here; nobody waits.
#include <gtest/gtest.h>

#include "bootstrap/ending_wait.hpp"
#include "bootstrap/silence.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kMs = 1'000'000, kLimit = 400 * kMs, kBeat = 100 * kMs;

// The control thread is awake every `step` from `from` to `to`.
void awake(Silence &silence, int64_t from, int64_t to, int64_t step = kLimit / 8) {
  for (int64_t now = from; now <= to; now += step) silence.turn(now);
}

TEST(EndingWait, ManyProcessesThatEndAtOneTimeAreWaitedForTogether) {
  EndingWait wait;
  EXPECT_EQ(wait.left_ms(5'000 * kMs), 100);
  EXPECT_EQ(wait.left_ms(5'040 * kMs), 60);
  EXPECT_EQ(wait.left_ms(5'100 * kMs), 0);
  EXPECT_EQ(wait.left_ms(5'999 * kMs), 0);
  EXPECT_EQ(wait.left_ms(6'000 * kMs), 100);
}

TEST(Silence, WhoSaysNothingForLongerThanTheLimitIsOver) {
  Silence silence(kLimit);
  awake(silence, 0, 1000 * kMs);
  EXPECT_FALSE(silence.over(600 * kMs, kBeat));
  EXPECT_TRUE(silence.over(600 * kMs - 1, kBeat));
}

TEST(Silence, WithNoLimitNobodyIsWatchedAndNobodyIsWoken) {
  Silence silence(0);
  silence.turn(1000 * kMs);
  EXPECT_FALSE(silence.over(0, kBeat));
  EXPECT_EQ(silence.next_ns(), std::numeric_limits<int64_t>::max());
}

TEST(Silence, WhatWasNotHeardDuringAnAbsenceOfOnesOwnDoesNotCount) {
  Silence silence(kLimit);
  awake(silence, 0, 1000 * kMs);
  silence.turn(60'000 * kMs);  // this process was stopped for 59 s
  EXPECT_FALSE(silence.over(1000 * kMs, kBeat));
  awake(silence, 60'000 * kMs, 60'400 * kMs);
  EXPECT_FALSE(silence.over(1000 * kMs, kBeat));
  silence.turn(60'401 * kMs);
  EXPECT_TRUE(silence.over(1000 * kMs, kBeat));
}

// The process is stopped at any moment, also behind the beginning of a turn.
TEST(Silence, TheTimeSinceTheLastTurnIsNobodysSilence) {
  Silence silence(kLimit);
  awake(silence, 0, 1000 * kMs);
  EXPECT_FALSE(silence.over(950 * kMs, kBeat)) << "whatever time it is now";
  silence.turn(60'000 * kMs);
  EXPECT_FALSE(silence.over(950 * kMs, kBeat));
}

TEST(Silence, AProcessThatSpeaksRarelyMayMissThreeOfItsHeartbeats) {
  Silence silence(kLimit);
  awake(silence, 0, 4000 * kMs);
  EXPECT_FALSE(silence.over(1000 * kMs, 1000 * kMs));
  EXPECT_TRUE(silence.over(999 * kMs, 1000 * kMs));
}

TEST(Silence, TheControlThreadIsAwakeOftenEnoughToKnowAnAbsenceOfItsOwn) {
  Silence silence(kLimit);
  silence.turn(1000 * kMs);
  EXPECT_EQ(silence.next_ns(), 1050 * kMs);
}

}  // namespace
}  // namespace isthmus::bootstrap
