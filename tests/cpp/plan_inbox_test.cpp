// Plan data from links: every frame reaches the place that the plan names, in whatever pieces and order it comes.
#include "collective/plan_inbox.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <vector>

namespace isthmus::collective {
namespace {

constexpr uint64_t kMost = 1 << 20;

std::byte content(int peer, uint64_t id, uint64_t at) {
  return static_cast<std::byte>(31 * peer + 7 * static_cast<int>(id) + static_cast<int>(at));
}

link::FrameHeader piece(int peer, uint64_t id, uint64_t total, uint64_t offset, uint64_t bytes, uint64_t digest = 5) {
  link::FrameHeader h;
  h.source = static_cast<uint32_t>(peer);
  h.id = id;
  h.total = total;
  h.offset = offset;
  h.bytes = static_cast<uint32_t>(bytes);
  h.digest = digest;
  return h;
}

void arrive(PlanInbox &inbox, const link::FrameHeader &h) {
  std::byte *to = nullptr;
  ASSERT_EQ(inbox.accept(h, 1, 2'000'000, kMost, to), link::Accept::Take);
  for (uint64_t i = 0; i < h.bytes; ++i) to[i] = content(static_cast<int>(h.source), h.id, h.offset + i);
  inbox.received(h);
}

// Peers send frames in order, cut into pieces; the pieces of two frames may overtake each other, as on the streams of a link.
TEST(PlanInbox, EveryFrameReachesItsPlaceInAnyOrderOfPieces) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
    const int peers = 1 + static_cast<int>(pick(2));
    struct Frame {
      int peer;
      uint64_t id, bytes;
    };
    std::vector<Frame> plan;
    std::vector<std::deque<link::FrameHeader>> coming(static_cast<size_t>(peers));
    std::vector<uint64_t> next(static_cast<size_t>(peers));
    for (uint64_t i = 0, n = pick(20); i < n; ++i) {
      const int peer = static_cast<int>(pick(static_cast<uint64_t>(peers) - 1));
      const uint64_t bytes = 1 + pick(300);
      plan.push_back({peer, next[static_cast<size_t>(peer)]++, bytes});
      for (uint64_t at = 0; at < bytes;) {
        const uint64_t part = std::min(1 + pick(150), bytes - at);
        coming[static_cast<size_t>(peer)].push_back(piece(peer, plan.back().id, bytes, at, part));
        at += part;
      }
    }
    PlanInbox inbox(peers);
    std::vector<std::byte> to(301);
    for (size_t at = 0; at < plan.size();) {
      if (pick(1) != 0) {
        const Frame &f = plan[at];
        const auto taken = inbox.take(f.peer, f.bytes, 5, to.data(), 3);
        ASSERT_NE(taken, PlanInbox::Taken::Wrong);
        if (taken == PlanInbox::Taken::Later) continue;
        for (uint64_t i = 0; i < f.bytes; ++i) ASSERT_EQ(to[i], content(f.peer, f.id, i)) << "seed " << seed;
        ++at;
      } else {
        auto &from = coming[pick(static_cast<uint64_t>(peers) - 1)];
        if (from.empty()) continue;
        const size_t which = std::min<size_t>(pick(3), from.size() - 1);
        const link::FrameHeader h = from[which];
        from.erase(from.begin() + static_cast<std::ptrdiff_t>(which));
        arrive(inbox, h);
      }
    }
  }
}

TEST(PlanInbox, AFrameThatIsWaitedForGoesStraightToItsPlace) {
  PlanInbox inbox(1);
  std::vector<std::byte> place(100);
  EXPECT_EQ(inbox.take(0, 100, 5, place.data(), 3), PlanInbox::Taken::Later);
  std::byte *to = nullptr;
  EXPECT_EQ(inbox.accept(piece(0, 0, 100, 40, 60), 0, 0, kMost, to), link::Accept::Take);
  EXPECT_EQ(to, place.data() + 40);
}

TEST(PlanInbox, LargeDataThatNobodyWaitsForStaysInTheLinkAMoment) {
  PlanInbox inbox(1);
  std::byte *to = nullptr;
  const auto large = piece(0, 0, 100'000, 0, 1000), small = piece(0, 0, 1000, 0, 1000);
  EXPECT_EQ(inbox.accept(large, 0, 10'000'000, kMost, to), link::Accept::Defer);
  EXPECT_EQ(inbox.accept(large, 9'500'000, 10'000'000, kMost, to), link::Accept::Defer);
  EXPECT_EQ(inbox.accept(large, 9'000'000, 10'000'000, kMost, to), link::Accept::Take);
  EXPECT_EQ(PlanInbox(1).accept(small, 0, 0, kMost, to), link::Accept::Take);
}

TEST(PlanInbox, AFrameOfAnotherPlanOrSizeIsWrongAndItsRankIsNamed) {
  std::vector<std::byte> place(100);
  std::byte *to = nullptr;
  {
    PlanInbox inbox(2);
    inbox.take(1, 100, 5, place.data(), 3);
    EXPECT_EQ(inbox.accept(piece(1, 0, 90, 0, 90), 0, 0, kMost, to), link::Accept::Drop);
    EXPECT_EQ(inbox.wrong(3), 1);
    EXPECT_EQ(inbox.wrong(2), -1) << "of the operation that asked";
  }
  PlanInbox inbox(2);
  arrive(inbox, piece(1, 0, 100, 0, 100, 6));
  EXPECT_EQ(inbox.wrong(3), -1);
  EXPECT_EQ(inbox.take(1, 100, 5, place.data(), 3), PlanInbox::Taken::Wrong);
  EXPECT_EQ(inbox.wrong(3), 1);
}

TEST(PlanInbox, NothingIsWrittenToAPlaceThatIsForgotten) {
  PlanInbox inbox(1);
  std::vector<std::byte> place(100);
  inbox.take(0, 100, 5, place.data(), 3);
  inbox.forget();
  std::byte *to = nullptr;
  EXPECT_EQ(inbox.accept(piece(0, 0, 100, 0, 100), 0, 0, kMost, to), link::Accept::Take);
  EXPECT_NE(to, place.data());
}

TEST(PlanInbox, WhatIsLargerThanAnyFrameOrWasTakenBeforeIsDropped) {
  PlanInbox inbox(1);
  std::byte *to = nullptr;
  EXPECT_EQ(inbox.accept(piece(0, 0, kMost + 1, 0, 10), 1, 2'000'000, kMost, to), link::Accept::Drop);
  arrive(inbox, piece(0, 0, 10, 0, 10));
  std::byte place[10];
  EXPECT_EQ(inbox.take(0, 10, 5, place, 3), PlanInbox::Taken::Yes);
  EXPECT_EQ(inbox.accept(piece(0, 0, 10, 0, 10), 1, 2'000'000, kMost, to), link::Accept::Drop);
}

}  // namespace
}  // namespace isthmus::collective
