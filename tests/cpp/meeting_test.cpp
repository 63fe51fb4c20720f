// Meetings through the C interface: how long each exchange waits, and what it says and leaves of those that came.
#include <gtest/gtest.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "patience.hpp"

namespace {

using Clock = std::chrono::steady_clock;

// What has to happen within a timeout has 2.5 s of it.
using isthmus_test::patient;
const double kTimeout = patient(3);
const Clock::duration kNow{};
const auto kLess = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patient(0.5)));
const auto kMore = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patient(3.2)));

struct Heard {
  isthmus_result result;
  std::string text;
  std::vector<char> all;
  double seconds;
};
Heard exchange(isthmus_meeting_t meeting, int rank, int world) {
  Heard h{ISTHMUS_OK, {}, std::vector<char>(static_cast<size_t>(world), '?'), 0};
  const char mine = static_cast<char>('a' + rank);
  const auto begun = Clock::now();
  h.result = isthmus_meeting_exchange(meeting, &mine, h.all.data(), 1);
  h.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  if (h.result != ISTHMUS_OK) h.text = isthmus_last_error();
  return h;
}

// Each rank joins, waits so long before each exchange, and takes part in so many. It leaves when all are done.
struct Way {
  std::vector<Clock::duration> waits;
};
std::vector<std::vector<Heard>> meet(const std::vector<Way> &ways) {
  isthmus_ticket ticket;
  EXPECT_EQ(isthmus_meeting_create(&ticket), ISTHMUS_OK) << isthmus_last_error();
  const int world = static_cast<int>(ways.size());
  std::vector<isthmus_meeting_t> meetings(ways.size());
  for (int r = 0; r < world; ++r)
    EXPECT_EQ(isthmus_meeting_join(&ticket, r, world, kTimeout, &meetings[static_cast<size_t>(r)]), ISTHMUS_OK);
  std::vector<std::future<std::vector<Heard>>> ranks;
  for (int r = 0; r < world; ++r)
    ranks.push_back(std::async(std::launch::async, [&, r] {
      std::vector<Heard> heard;
      for (const auto wait : ways[static_cast<size_t>(r)].waits) {
        std::this_thread::sleep_for(wait);
        heard.push_back(exchange(meetings[static_cast<size_t>(r)], r, world));
      }
      return heard;
    }));
  std::vector<std::vector<Heard>> out;
  for (auto &rank : ranks) out.push_back(rank.get());
  for (isthmus_meeting_t meeting : meetings) isthmus_meeting_leave(meeting);
  return out;
}

// Both wait for deadlines, at the same time.
class Meeting : public testing::Test {
 protected:
  using All = std::vector<std::vector<Heard>>;
  static void SetUpTestSuite() {
    EXPECT_EQ(setenv("ISTHMUS_INTERFACE", "lo", 1), 0);
    slow_ = std::async(std::launch::async, [] { return meet({{{kNow, kMore, kNow}}, {{kNow, kMore, kLess}}}); });
    silent_ = std::async(std::launch::async, [] { return meet({{{kNow, kMore}}, {{kNow, kMore}}, {{kNow}}}); });
  }
  static void TearDownTestSuite() {
    for (auto *rest : {&slow_, &silent_})
      if (rest->valid()) rest->get();
  }
  static inline std::future<All> slow_, silent_;
};

// Ranks that met may have something to do before they have more to say, and one may be slow every time.
TEST_F(Meeting, EachExchangeMayTakeTheWholeTimeout) {
  for (const auto &rank : slow_.get()) {
    ASSERT_EQ(rank.size(), 3u);
    for (const Heard &h : rank) {
      EXPECT_EQ(h.result, ISTHMUS_OK) << h.text;
      EXPECT_EQ(h.all, (std::vector<char>{'a', 'b'}));
    }
  }
}

TEST_F(Meeting, WhoComesAndNeverAnswersCostsTheTimeoutOfOneExchangeAndIsNamed) {
  const auto heard = silent_.get();
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    ASSERT_EQ(heard[rank].size(), 2u);
    EXPECT_EQ(heard[rank][0].result, ISTHMUS_OK) << heard[rank][0].text;
    const Heard &second = heard[rank][1];
    EXPECT_EQ(second.result, ISTHMUS_ERR_TIMEOUT);
    EXPECT_EQ(second.text.find("rank 2 of 3 did not take part in exchange 1 "), 0u) << second.text;  // counted from 0
    // Of the timeout a rank had what was left when it came: it is counted from when the first rank came.
    const size_t within = second.text.find(" within ");
    ASSERT_NE(within, std::string::npos) << second.text;
    const double left = std::atof(second.text.c_str() + within + 8);
    EXPECT_TRUE(left > 0 && left < 1.5 * kTimeout) << second.text;  // from the first exchange it would be more
    EXPECT_EQ(second.all, (std::vector<char>{'a', 'b', 0}));
  }
  // From the time when the first rank wanted it.
  EXPECT_GE(std::max(heard[0][1].seconds, heard[1][1].seconds), 0.99 * kTimeout);
}

TEST_F(Meeting, AnExchangeOfNothingNeedsNoMemory) {
  isthmus_ticket ticket;
  ASSERT_EQ(isthmus_meeting_create(&ticket), ISTHMUS_OK) << isthmus_last_error();
  isthmus_meeting_t alone = nullptr;
  ASSERT_EQ(isthmus_meeting_join(&ticket, 0, 1, kTimeout, &alone), ISTHMUS_OK) << isthmus_last_error();
  EXPECT_EQ(isthmus_meeting_exchange(alone, nullptr, nullptr, 0), ISTHMUS_OK) << isthmus_last_error();
  EXPECT_EQ(isthmus_meeting_exchange(alone, nullptr, nullptr, 1), ISTHMUS_ERR_ARGUMENT);
  isthmus_meeting_leave(alone);
}

TEST_F(Meeting, WatchesNothingButAListenerForATicketOfThisProcess) {
  isthmus_ticket ticket;
  ASSERT_EQ(isthmus_meeting_create(&ticket), ISTHMUS_OK) << isthmus_last_error();
  EXPECT_EQ(isthmus_meeting_watch(nullptr, 0), ISTHMUS_ERR_ARGUMENT);
  EXPECT_EQ(isthmus_meeting_watch(&ticket, -1), ISTHMUS_ERR_ARGUMENT);
  EXPECT_NE(std::string(isthmus_last_error()).find("is no socket that listens"), std::string::npos) << isthmus_last_error();
  ticket = {};
  EXPECT_EQ(isthmus_meeting_watch(&ticket, 0), ISTHMUS_ERR_ARGUMENT);
  EXPECT_NE(std::string(isthmus_last_error()).find("this is not a ticket"), std::string::npos) << isthmus_last_error();
}

}  // namespace
