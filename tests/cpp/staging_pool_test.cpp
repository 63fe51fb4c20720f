// The pinned memory of messages: shares, spare pieces, and receives behind gates that inherit a piece.
#include "p2p/staging_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "eventually.hpp"

namespace isthmus::p2p {
namespace {

constexpr uint64_t kKiB = 1024, kSmall = 16 * kKiB;

class Memory final : public StagingSource {  // so many bytes, wherever they lie
 public:
  explicit Memory(uint64_t limit) : limit_(limit) {}
  std::optional<uint64_t> allocate(uint64_t bytes) noexcept override {
    if (used + bytes > limit_) return std::nullopt;
    used += bytes;
    given_[next_ += bytes] = bytes;
    return next_;
  }
  void free(uint64_t offset) noexcept override {
    const auto found = given_.find(offset);
    ASSERT_NE(found, given_.end()) << "given back twice";
    used -= found->second;
    given_.erase(found);
    if (meanwhile) meanwhile();
  }
  std::function<void()> meanwhile;  // what another thread does in the meantime
  uint64_t limit() const noexcept override { return limit_; }
  uint64_t used = 0;

 private:
  const uint64_t limit_;
  uint64_t next_ = 0;
  std::map<uint64_t, uint64_t> given_;
};

TEST(StagingPool, NoShareTakesThePlaceOfAnother) {
  Memory memory(1024 * kKiB);
  ShareBytes used{};
  StagingPool pool(memory, used);
  int sends = 0, ahead = 0;
  while (pool.take(32 * kKiB, Share::Send)) ++sends;
  while (pool.take(32 * kKiB, Share::Ahead)) ++ahead;
  EXPECT_EQ(sends, 8);  // a quarter
  EXPECT_EQ(ahead, 4);  // an eighth
  EXPECT_TRUE(pool.take(32 * kKiB, Share::Announced));
}

TEST(StagingPool, AShareThatNothingIsInHasRoomForOneMessageOfAnySize) {
  Memory memory(1024 * kKiB);
  ShareBytes used{};
  StagingPool pool(memory, used);
  const auto large = pool.take(800 * kKiB, Share::Send);
  ASSERT_TRUE(large);
  EXPECT_FALSE(pool.take(1, Share::Send));
  pool.give(*large);
  EXPECT_TRUE(pool.take(1, Share::Send));
}

TEST(StagingPool, AllPoolsOfAProcessCountInTheSameShares) {
  Memory memory(1024 * kKiB);
  ShareBytes used{};
  StagingPool one(memory, used), other(memory, used);
  const auto piece = one.take(256 * kKiB, Share::Send);
  EXPECT_FALSE(other.take(4 * kKiB, Share::Send));
  one.give(*piece);
  EXPECT_TRUE(other.take(4 * kKiB, Share::Send));
}

TEST(StagingPool, WhatADeviceMayStillWriteIsNobodysAnyMoreAndTheShareHasRoomAgain) {
  Memory memory(1024 * kKiB);
  ShareBytes used{};
  StagingPool pool(memory, used);
  pool.lose(*pool.take(256 * kKiB, Share::Send));
  EXPECT_EQ(pool.used(Share::Send), 0u);
  EXPECT_FALSE(pool.free_spares());
  EXPECT_EQ(memory.used, 256 * kKiB);
}

TEST(StagingPool, OthersTakeAndGiveWhileSparesGoBack) {
  Memory memory(1024 * kKiB);
  ShareBytes used{};
  StagingPool pool(memory, used);
  pool.give(*pool.take(8 * kKiB, Share::Send));
  std::atomic<bool> done{false};
  std::thread other;
  memory.meanwhile = [&] {
    other = std::thread([&] {
      pool.give(*pool.take(16 * kKiB, Share::Announced));
      done.store(true);
    });
    EXPECT_TRUE(isthmus_test::eventually([&] { return done.load(); }));
  };
  EXPECT_TRUE(pool.free_spares());
  other.join();
  memory.meanwhile = nullptr;
}

TEST(StagingPool, InAnyOrderNoPieceIsTwoMessagesAndNothingIsLost) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
    Memory memory(1024 * kKiB);
    ShareBytes used{};
    {
      StagingPool pool(memory, used);
      std::vector<Piece> held;
      std::set<uint64_t> places;
      uint64_t of_share[kShares] = {};
      for (int step = 0; step < 300; ++step) {
        if (pick(2) != 0) {
          const auto share = static_cast<Share>(pick(kShares - 1));
          const uint64_t bytes = 1 + pick(pick(1) != 0 ? 300 * kKiB : 20 * kKiB);
          const auto piece = pool.take(bytes, share, pick(9) == 0);
          if (!piece) continue;
          ASSERT_GE(piece->bytes, bytes);
          ASSERT_TRUE(places.insert(piece->offset).second) << "seed " << seed;
          of_share[static_cast<size_t>(share)] += piece->bytes;
          held.push_back(*piece);
        } else if (!held.empty()) {
          const size_t at = pick(held.size() - 1);
          places.erase(held[at].offset);
          of_share[static_cast<size_t>(held[at].share)] -= held[at].bytes;
          pool.give(held[at]);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
        } else {
          pool.free_spares();
        }
        for (size_t s = 0; s < kShares; ++s) ASSERT_EQ(used[s], of_share[s]);
      }
      for (const Piece &piece : held) pool.give(piece);
    }
    ASSERT_EQ(memory.used, 0u) << "seed " << seed;
  }
}

// Receives behind gates: each has a piece, or inherits one; their copies land in order. So each has a piece once those before it are over.
TEST(PlaceChain, EachReceiveHasAPieceOfItsOwnOnceThoseBeforeItAreOver) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
    Memory memory(kSmall * (1 + pick(3)));
    ShareBytes used{};
    StagingPool pool(memory, used);
    PlaceChain chain(kSmall);
    std::deque<Place> receives;
    size_t over = 0;
    for (int step = 0; step < 400; ++step) {
      if (pick(1) != 0) {
        const uint64_t bytes = 1 + pick(kSmall - 1);
        Place &place = receives.emplace_back();
        if (const auto piece = pool.take(chain.wide() ? bytes : kSmall, Share::SmallAhead, !chain.wide())) {
          place.piece = *piece;
          place.own = true;
        } else {
          ASSERT_TRUE(chain.inherit(place, bytes)) << "seed " << seed;
        }
        ASSERT_GE(place.piece.bytes, bytes);
        chain.lend(place);
        ASSERT_TRUE(chain.wide());
      } else if (over < receives.size()) {
        Place &place = receives[over++];
        ASSERT_TRUE(place.own && !place.inherits) << "seed " << seed << ", receive " << over;
        const Place before = place;
        chain.hand_on(place);
        if (place.own) pool.give(place.piece);
        else ASSERT_EQ(before.heir->piece.offset, before.piece.offset);
        ASSERT_TRUE(before.heir == nullptr || before.heir->own);
      }
    }
    while (over < receives.size()) {
      Place &place = receives[over++];
      ASSERT_TRUE(place.own);
      chain.hand_on(place);
      if (place.own) pool.give(place.piece);
    }
    pool.free_spares();
    ASSERT_EQ(memory.used, 0u);
  }
}

}  // namespace
}  // namespace isthmus::p2p
