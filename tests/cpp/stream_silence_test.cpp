// StreamSilence over what a kernel says, by a time of the test's own.
#include "link/stream_silence.hpp"

#include <gtest/gtest.h>

namespace isthmus::link {
namespace {

constexpr int64_t kMs = 1'000'000;

// A kernel that sends, repeats and hears. Somebody looks every 4 ms.
struct Way {
  // Looks for so long, and says when the stream was silent for too long for the first time: ms from now on; -1: never.
  int64_t silent_within(int64_t ms, int64_t every = 4) {
    for (int64_t at = every; at <= ms; at += every) {
      now += every * kMs;
      if (look() != 0) return at;
    }
    return -1;
  }
  int64_t look() {
    const int64_t quiet = (now - heard) / (4 * kMs) * 4 * kMs;  // as a clock of 250 Hz has it
    return silence.look(
        {.unanswered = unanswered, .stuck = stuck, .quiet_ns = quiet, .round_ns = round_ns, .repeated = repeated}, now);
  }
  void send(uint32_t segments) { unanswered += segments; }
  // Many segments are sent, one is sent again 8 ms later, and nothing comes: ms until the stream counts as silent.
  int64_t ask_in_vain() {
    send(20);
    EXPECT_EQ(silent_within(8), -1);
    ++repeated;
    const int64_t at = silent_within(2000);
    return at < 0 ? at : at + 8;
  }
  void hear() {
    heard = now;
    unanswered = 0;
  }
  explicit Way(int64_t delay_ms = 0) : silence(delay_ms * kMs) {}
  StreamSilence silence;
  uint32_t unanswered = 0, repeated = 0;
  bool stuck = false;
  int64_t now = 1000 * kMs, heard = 0, round_ns = 200'000;
};

TEST(StreamSilence, WhatWasSentAgainAndNotAnsweredEitherIsSilentWithin40Milliseconds) {
  Way way;
  EXPECT_EQ(way.silent_within(200), -1) << "nothing was asked";
  const int64_t at = way.ask_in_vain();
  EXPECT_GE(at, 25);
  EXPECT_LE(at, 40);
}

TEST(StreamSilence, SeveralSegmentsWithoutAnAnswerAreSilentWithin70Milliseconds) {
  Way way;
  way.look();
  way.send(3);
  const int64_t at = way.silent_within(400);
  EXPECT_GT(at, 50);
  EXPECT_LE(at, 70);
}

TEST(StreamSilence, AKernelThatSaysHowLongItDelaysAnAnswerIsSilentThatLongAnd17Milliseconds) {
  for (const auto &[delay, least] : {std::pair<int64_t, int64_t>(8, 25), {20, 37}, {32, 49}}) {
    Way way(delay);
    EXPECT_EQ(way.silence.delay_ns(), delay * kMs);
    way.look();
    way.send(20);
    const int64_t at = way.silent_within(400);
    EXPECT_GE(at, least) << delay;
    EXPECT_LE(at, least + 15) << delay;
  }
}

TEST(StreamSilence, ASegmentThatIsLostOnALivingWayIsNoSilence) {
  for (const int64_t delay : {0, 8})
    for (const int64_t round_ms : {1, 2, 4, 12, 50, 200}) {
      Way way(delay);
      way.round_ns = round_ms * kMs;
      way.look();
      way.send(20);
      // The kernel sends the next segment after two round trips and two ticks, and what comes of that says what was lost.
      EXPECT_EQ(way.silent_within((3 * round_ms + 11) / 4 * 4), -1) << delay << " " << round_ms;
      way.hear();
      EXPECT_EQ(way.silent_within(100), -1);
      way.send(1);  // of one alone it thinks 200 ms later
      EXPECT_EQ(way.silent_within(200 + 3 * round_ms), -1) << delay << " " << round_ms;
    }
}

TEST(StreamSilence, ADelayThatIsNoShorterThanUsualChangesNothing) {
  for (const int64_t delay : {-1, 33, 40, 200, 1000}) {
    Way way(delay);
    EXPECT_EQ(way.silence.delay_ns(), 0);
    way.look();
    way.send(1);
    EXPECT_EQ(way.silent_within(208), -1) << delay;
    way.send(5);
    EXPECT_GT(way.silent_within(400), 50) << delay;
  }
}

TEST(StreamSilence, AnAnswerThatComesAfterTheDelayThatItsKernelHasSaidIsNoSilence) {
  Way way(8);
  for (int times = 0; times < 20; ++times) {
    way.send(3 + static_cast<uint32_t>(times));
    EXPECT_EQ(way.silent_within(12), -1);
    EXPECT_TRUE(way.silence.answers());
    way.hear();
    EXPECT_EQ(way.silent_within(4), -1);
  }
}

TEST(StreamSilence, AnAnswerThatIsDelayedIsNoSilence) {
  Way way;
  for (int times = 0; times < 20; ++times) {
    way.send(3);  // to a process that does not read: its kernel answers 40 ms later
    EXPECT_EQ(way.silent_within(40), -1);
    way.hear();
    way.send(1);  // one small message: up to 200 ms
    EXPECT_EQ(way.silent_within(200), -1);
    way.hear();
    EXPECT_EQ(way.silent_within(8), -1);
  }
}

TEST(StreamSilence, OneSegmentIsSilentWhenItWasSentAgain) {
  Way way;
  way.look();
  way.send(1);
  EXPECT_EQ(way.silent_within(208), -1);
  ++way.repeated;
  EXPECT_LE(way.silent_within(100), 24);
}

TEST(StreamSilence, WhatCannotBeSentIsADoubtAndNoSilence) {
  Way way;
  EXPECT_EQ(way.silent_within(40), -1);
  EXPECT_EQ(way.silence.doubt(), 0);
  way.stuck = true;  // the interface may be down, or a living process reads nothing
  const int64_t begin = way.now;
  EXPECT_EQ(way.silent_within(8), -1);
  EXPECT_EQ(way.silence.doubt(), 0);
  EXPECT_EQ(way.silent_within(8), -1);
  EXPECT_GE(way.silence.doubt(), 10 * kMs);
  EXPECT_GT(way.silence.since(), begin);
  EXPECT_LE(way.silence.since(), begin + 4 * kMs);
  EXPECT_EQ(way.silent_within(10'000), -1);
  way.stuck = false;
  way.look();
  EXPECT_EQ(way.silence.doubt(), 0);
}

TEST(StreamSilence, WhatIsStillUnderWayIsNoSilence) {
  Way way;
  way.round_ns = 300 * kMs;
  way.look();
  way.send(50);
  ++way.repeated;
  EXPECT_EQ(way.silent_within(900), -1);
  EXPECT_NE(way.silent_within(100), -1);
}

TEST(StreamSilence, WhoWasAwayHasHeardNothingFromAnybody) {
  Way way;
  way.look();
  way.send(20);
  EXPECT_EQ(way.silent_within(8), -1);
  ++way.repeated;
  EXPECT_EQ(way.silent_within(1000, 1000), -1) << "one look after a second";
  way.hear();
  EXPECT_EQ(way.silent_within(8), -1);
  way.send(20);
  for (int looks = 0; looks < 20; ++looks) {  // answered between any two looks
    way.now += 100 * kMs;
    way.heard = way.now - 50 * kMs;
    EXPECT_EQ(way.look(), 0);
  }
}

TEST(StreamSilence, WhoIsBackAtOnceGetsTwiceTheTimeAndWhoStaysAwayDoesNot) {
  Way way;
  int64_t before = 0;
  for (int times = 0; times < 4; ++times) {
    way.look();
    const int64_t at = way.ask_in_vain();
    EXPECT_GT(at, 3 * before / 2);
    before = at;
    way.silence.lost(way.now);
    way.now += 100 * kMs;
    way.silence.begin(way.now);
    way.hear();
  }
  way.look();
  EXPECT_NE(way.ask_in_vain(), -1);
  way.silence.lost(way.now);
  way.now += 1000 * kMs;
  way.silence.begin(way.now);
  way.hear();
  way.look();
  EXPECT_LE(way.ask_in_vain(), 40);
}

TEST(StreamSilence, WhatIsSentBehindAMessageThatWaitsForItsAnswerHasItsOwnTime) {
  Way way;
  way.look();
  way.send(1);
  EXPECT_EQ(way.silent_within(160), -1);
  way.send(5);
  EXPECT_EQ(way.silent_within(48), -1);
  EXPECT_NE(way.silent_within(24), -1);
}

TEST(StreamSilence, AStreamThatIsAskedNothingOrAnswersLateIsOneThatAnswers) {
  Way way;
  way.look();
  EXPECT_TRUE(way.silence.answers());
  way.send(1);
  EXPECT_EQ(way.silent_within(100), -1);
  EXPECT_TRUE(way.silence.answers());
  way.send(5);
  EXPECT_EQ(way.silent_within(32), -1);
  EXPECT_FALSE(way.silence.answers());
  way.hear();
  way.look();
  EXPECT_TRUE(way.silence.answers());
}

}  // namespace
}  // namespace isthmus::link
