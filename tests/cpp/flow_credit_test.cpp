// Flow credit: the receiver never has more than its window, and nobody waits for ever.
#include "p2p/flow_credit.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace isthmus::p2p {
namespace {

constexpr uint64_t kWindow = 1024;

// Frames travel in order; grants come late, and in any order. `memory`: the two ranks share memory.
void travel(uint64_t seed, bool memory) {
  std::mt19937_64 random(seed);
  const auto pick = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
  std::atomic<uint64_t> word{0};
  SendCredit send;
  RecvCredit recv;
  send.open(kWindow, memory ? &word : nullptr);
  recv.open(kWindow, memory ? &word : nullptr);
  std::deque<uint64_t> frames;
  std::vector<uint64_t> grants;
  uint64_t there = 0, sent = 0;
  const uint64_t all = 100 * kWindow;
  int idle = 0;
  bool message = false;
  uint64_t next = 0;  // bytes of the frame that goes next; 0: none is chosen
  while (sent < all || !frames.empty()) {
    ASSERT_LT(++idle, 1000) << "seed " << seed << ": nothing goes on";
    const uint64_t action = pick(2);
    if (action == 0 && sent < all) {
      if (next == 0) {  // a plan's frame has to go before the next; a message that finds no room is announced instead
        message = pick(1) != 0;
        next = !message && pick(20) == 0 ? 3 * kWindow : 1 + pick(kWindow / 4);
      }
      const uint64_t bytes = message ? std::exchange(next, 0) : next;
      if (message ? !send.take_for_message(bytes) : !send.take(bytes)) continue;
      ASSERT_TRUE(there + bytes <= (message ? kWindow / 4 : kWindow) || (bytes > kWindow && there < kWindow / 4))
          << "seed " << seed;
      next = 0;
      frames.push_back(bytes);
      there += bytes;
      sent += bytes;
    } else if (action == 1 && !frames.empty()) {
      there -= frames.front();
      if (const uint64_t grant = recv.consumed(frames.front())) grants.push_back(grant);
      frames.pop_front();
    } else if (!grants.empty()) {
      const size_t at = pick(grants.size() - 1);
      send.grant(grants[at]);
      grants.erase(grants.begin() + static_cast<std::ptrdiff_t>(at));
    } else {
      continue;
    }
    idle = 0;
  }
}

TEST(FlowCredit, TheReceiverNeverHasMoreThanItsWindowButOneLargeFrame) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    travel(seed, true);
    travel(seed, false);
  }
}

TEST(FlowCredit, ManyThreadsTogetherTakeNoMoreThanThereIs) {
  SendCredit send;
  send.open(kWindow, nullptr);
  std::atomic<uint64_t> taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 10'000; ++k)
        if (send.take(1)) ++taken;
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(taken, kWindow);
}

TEST(FlowCredit, ThreeQuartersOfTheWindowAreForPlanData) {
  SendCredit send;
  send.open(kWindow, nullptr);
  EXPECT_TRUE(send.take_for_message(kWindow / 4));
  EXPECT_FALSE(send.has_for_message(1));
  EXPECT_FALSE(send.take_for_message(1));
  EXPECT_TRUE(send.take(kWindow / 4 * 3));
  EXPECT_FALSE(send.take(1));
}

// Where hosts are far apart a plan sends 32 chunks of a 64th of the window each before it takes the first.
TEST(FlowCredit, APlanThatSendsHalfAWindowAheadGoesOnBesideMessagesThatNobodyReceives) {
  constexpr uint64_t kFrame = kWindow / 64;
  constexpr int kAhead = 31, kChunks = 128;
  struct Side {
    SendCredit send;
    RecvCredit recv;
    int sent = 0, taken = 0;
  } sides[2];
  for (Side &s : sides) {
    s.send.open(kWindow, nullptr);
    s.recv.open(kWindow, nullptr);
    while (s.send.take_for_message(kFrame)) {}
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int r : {0, 1}) {
      Side &mine = sides[r], &other = sides[1 - r];
      while (mine.sent < kChunks && mine.sent - mine.taken <= kAhead && mine.send.take(kFrame)) ++mine.sent, moved = true;
      if (mine.taken == other.sent || (mine.sent < kChunks && mine.sent - mine.taken <= kAhead)) continue;
      ++mine.taken;
      moved = true;
      if (const uint64_t granted = mine.recv.consumed(kFrame)) other.send.grant(granted);
    }
  }
  for (const Side &s : sides) EXPECT_EQ(s.taken, kChunks);
}

TEST(FlowCredit, AGrantIsToldOnceForEachQuarterOfTheWindow) {
  RecvCredit recv;
  recv.open(kWindow, nullptr);
  EXPECT_EQ(recv.consumed(kWindow / 4 - 1), 0u);
  EXPECT_EQ(recv.consumed(1), kWindow / 4 + kWindow);
  EXPECT_EQ(recv.consumed(1), 0u);
}

}  // namespace
}  // namespace isthmus::p2p
