// What communicators borrow of the staging memory: what is lent stays, what is not goes where it is missed.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "collective/rings.hpp"

namespace isthmus::collective {
namespace {

constexpr uint64_t kMiB = 1 << 20;

struct Pool {
  explicit Pool(uint64_t bytes) : arena(bytes) {}
  link::Arena arena;
  uint64_t read = UINT64_MAX;  // the last operation that all peers have ended
  std::unique_ptr<Rings> rings() {
    return std::make_unique<Rings>(arena, [this](uint64_t sequence) { return sequence <= read; });
  }
};

TEST(Rings, WhatAnOperationHasIsNotGivenToAnother) {
  Pool pool(4 * kMiB);
  const auto one = pool.rings(), other = pool.rings();
  one->take(3 * kMiB, 0);
  EXPECT_FALSE(one->give_idle());
  EXPECT_TRUE(one->lent());
  EXPECT_THROW(other->take(2 * kMiB, 0), Error);
  one->end(1);
  EXPECT_FALSE(one->lent());
  EXPECT_TRUE(one->give_idle());
  EXPECT_EQ(pool.arena.staging_used(), 0u);
  EXPECT_NE(other->take(3 * kMiB, kMiB / 2).slots, 0u);
}

TEST(Rings, WhatAPeerMayStillReadIsNotGivenBack) {
  Pool pool(4 * kMiB);
  const auto rings = pool.rings();
  rings->take(kMiB, kMiB);
  pool.read = 6;
  rings->end(7);
  EXPECT_FALSE(rings->give_idle());
  EXPECT_TRUE(rings->lent());
  pool.read = 7;
  EXPECT_TRUE(rings->give_idle());
  EXPECT_FALSE(rings->lent());
}

TEST(Rings, OperationsOfOneSizeStayInOnePlace) {
  Pool pool(256 * kMiB);
  const auto rings = pool.rings();
  std::set<uint64_t> places;
  for (uint64_t sequence = 1; sequence < 100; ++sequence) {
    places.insert(rings->take(600'000, 1000).slots);
    rings->end(sequence);
  }
  EXPECT_EQ(places.size(), 3u);  // which they take in turn
}

// A communicator of many ranks, of which each runs one small operation, would else make 2 MiB of pages in every one of them.
TEST(Rings, ASmallOperationMakesFewPagesAndTheRingHasAllOfThemOnceOperationsHaveGoneThroughIt) {
  Pool pool(256 * kMiB);
  const auto rings = pool.rings();
  const uint64_t begin = rings->take(100, 0).slots;
  const auto made = [&] {
    std::vector<unsigned char> pages(2 * kMiB / 4096);
    EXPECT_EQ(::mincore(pool.arena.base() + begin / 4096 * 4096, 2 * kMiB, pages.data()), 0);
    return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
  };
  EXPECT_GE(made(), 1);
  EXPECT_LE(made(), 32);
  for (uint64_t sequence = 1; sequence < 2 * kMiB / 50'000; ++sequence) {
    rings->end(sequence);
    rings->take(50'000, 0);
  }
  EXPECT_GE(made(), 500);
}

TEST(Rings, OperationsTakeTwoPlacesOfScratchByTurnsWhereThereIsPlenty) {
  for (const uint64_t room : {256 * kMiB, 4 * kMiB}) {
    Pool pool(room);
    const auto rings = pool.rings();
    std::vector<uint64_t> places;
    for (uint64_t sequence = 1; sequence < 5; ++sequence) {
      places.push_back(rings->take(0, kMiB).scratch);
      rings->end(sequence);
    }
    EXPECT_EQ(places[0], places[2]);
    EXPECT_EQ(places[1], places[3]);
    const uint64_t apart = std::max(places[0], places[1]) - std::min(places[0], places[1]);
    EXPECT_EQ(apart >= kMiB, room == 256 * kMiB) << apart;
  }
}

TEST(Rings, WhatGrowsWhileItIsUsedIsMadeAnewAndTheOldStays) {
  Pool pool(16 * kMiB);
  const auto rings = pool.rings();
  const auto first = rings->take(kMiB, 0), second = rings->take(5 * kMiB, 0);
  EXPECT_GE(pool.arena.staging_used(), 6 * kMiB);
  EXPECT_TRUE(second.slots >= first.slots + kMiB || first.slots >= second.slots + 5 * kMiB);
  rings->end(1);
  rings->end(2);
  rings->take(6 * kMiB, 0);  // now nobody has the old ones
  EXPECT_LT(pool.arena.staging_used(), 12 * kMiB);
}

TEST(Rings, WhereThereIsNotRoomForBothWhatIsThereMakesRoom) {
  Pool pool(4 * kMiB);
  const auto rings = pool.rings();
  rings->take(kMiB / 4, 3 * kMiB);
  rings->end(1);
  EXPECT_NE(rings->take(3 * kMiB, kMiB / 2).slots, 0u);
  rings->end(2);
  EXPECT_THROW(rings->take(4 * kMiB, kMiB), Error);  // more than there is
  EXPECT_FALSE(rings->lent());
  EXPECT_NE(rings->take(2 * kMiB, 2 * kMiB).scratch, 0u);
}

TEST(Rings, SlotsBeyondTheStagingMemoryAreThereForOneOperation) {
  Pool pool(4 * kMiB);
  const auto one = pool.rings(), other = pool.rings();
  one->take(4 * kMiB, 0);
  const uint64_t beyond = other->take_beyond(2 * kMiB).slots;
  EXPECT_TRUE(pool.arena.beyond(beyond));
  EXPECT_EQ(pool.arena.staging_used(), 4 * kMiB);
  pool.arena.base()[beyond + 2 * kMiB - 1] = std::byte{1};
  one->end(1);
  other->end(1);
  EXPECT_TRUE(one->give_idle());
  EXPECT_FALSE(pool.arena.beyond(other->take(kMiB, 0).slots));
}

TEST(Rings, TheReserveIsLentOnceItIsOpenAndTheStagingMemoryHasNoRoom) {
  Pool pool(4 * kMiB);
  const auto one = pool.rings(), other = pool.rings();
  one->take(4 * kMiB, 0);
  EXPECT_THROW(other->take(kMiB, kMiB), Error);
  other->open_reserve();
  const auto room = other->take(kMiB, kMiB);
  EXPECT_GE(std::min(room.slots, room.scratch), pool.arena.reserve_offset());
  EXPECT_FALSE(pool.arena.beyond(room.slots));
  EXPECT_LE(std::max(room.slots, room.scratch) + kMiB, pool.arena.bytes());
  EXPECT_EQ(pool.arena.staging_used(), 4 * kMiB);
  pool.arena.base()[std::max(room.slots, room.scratch) + kMiB - 1] = std::byte{1};
  other->end(1);
  EXPECT_EQ(other->take(kMiB, kMiB).slots, room.slots) << "it is kept for the next operation";
  other->end(2);
  EXPECT_TRUE(other->give_idle());
  one->end(1);
  EXPECT_TRUE(one->give_idle());
  EXPECT_LT(other->take(kMiB, kMiB).slots, pool.arena.reserve_offset());
}

TEST(Rings, TheReserveHasZerosForEachOwnerAndNoMoreBytesThanAreReachable) {
  Pool pool(4 * kMiB);
  EXPECT_EQ(pool.arena.reserve_limit(), 4 * kMiB);
  pool.arena.is_pinned(link::Arena::Pinned::Reserve, 2 * kMiB);
  EXPECT_EQ(pool.arena.reserve_limit(), 2 * kMiB);
  for (int owner = 0; owner < 2; ++owner) {
    const uint64_t offset = pool.arena.allocate_reserve(2 * kMiB);
    std::byte *const last = pool.arena.base() + offset + 2 * kMiB - 1;
    EXPECT_EQ(*last, std::byte{0});
    *last = std::byte{1};
    EXPECT_THROW(pool.arena.allocate_reserve(1), Error);
    pool.arena.free_staging(offset);
  }
}

TEST(Rings, GivesAllBackAtItsEnd) {
  Pool pool(8 * kMiB);
  pool.rings()->take(kMiB, kMiB);
  EXPECT_EQ(pool.arena.staging_used(), 0u);
}

// Communicators with operations in flight, in every order: no two of them ever have the same byte, but where operations of one communicator
// share scratch, and where its slots take turns through a ring.
TEST(Rings, NoTwoCommunicatorsEverHaveTheSameMemory) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Pool pool(4 * kMiB);
    struct Lent {
      uint64_t begin, end;
    };
    struct Side {
      std::unique_ptr<Rings> rings;
      std::vector<std::pair<Lent, Lent>> flying;
      uint64_t sequence = 0;
    };
    std::vector<Side> sides(4);
    for (Side &s : sides) s.rings = pool.rings();
    pool.read = 0;
    for (int step = 0; step < 300; ++step) {
      Side &s = sides[random() % sides.size()];
      if (random() % 3 == 0) pool.read += random() % 3;  // of the slowest peer
      if (random() % 2 == 0 && !s.flying.empty()) {
        s.flying.erase(s.flying.begin());
        s.rings->end(++s.sequence);
        continue;
      }
      const uint64_t slots = random() % (kMiB / 2) + 1, scratch = random() % 2 ? random() % (kMiB / 2) + 1 : 0;
      Rings::Room room;
      try {
        room = s.rings->take(slots, scratch);
      } catch (const Error &e) {
        ASSERT_EQ(e.code(), Code::Resource);
        for (Side &other : sides) other.rings->give_idle();
        continue;
      }
      const std::pair<Lent, Lent> mine{{room.slots, room.slots + slots}, {room.scratch, room.scratch + scratch}};
      const auto meets = [](const Lent &a, const Lent &b) { return a.begin < b.end && b.begin < a.end; };
      ASSERT_FALSE(scratch && meets(mine.first, mine.second));
      for (const Side &other : sides)
        for (const auto &[its_slots, its_scratch] : other.flying) {
          ASSERT_FALSE(meets(mine.first, its_scratch) || meets(mine.second, its_slots)) << seed;
          if (&other == &s) continue;
          ASSERT_FALSE(meets(mine.first, its_slots) || meets(mine.second, its_scratch)) << seed;
        }
      s.flying.push_back(mine);
    }
  }
}

}  // namespace
}  // namespace isthmus::collective
