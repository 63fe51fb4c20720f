// The arena's staging memory, also where a device has it pinned.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "link/arena.hpp"

namespace isthmus::link {
namespace {

constexpr size_t kPage = 4096;

// Whether the file behind the mapping has that page.
bool resident(const Arena &arena, uint64_t offset) {
  unsigned char there = 0;
  EXPECT_EQ(::mincore(arena.base() + offset, kPage, &there), 0);
  return (there & 1) != 0;
}

bool zero(const Arena &arena, uint64_t offset, size_t bytes) {
  return std::all_of(arena.base() + offset, arena.base() + offset + bytes, [](std::byte b) { return b == std::byte{}; });
}

TEST(Arena, GivesFreedPagesBackAndTheNextOwnerReadsZeros) {
  Arena arena(16 * kPage);
  const uint64_t first = arena.allocate_staging(2 * kPage);
  std::memset(arena.base() + first, 7, 2 * kPage);
  arena.free_staging(first);
  EXPECT_FALSE(resident(arena, first));
  const uint64_t again = arena.allocate_staging(2 * kPage);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(zero(arena, again, 2 * kPage));
}

TEST(Arena, KeepsThePagesThatADeviceHasPinned) {
  Arena arena(16 * kPage);
  arena.is_pinned(link::Arena::Pinned::Staging, 16 * kPage);
  const uint64_t first = arena.allocate_staging(2 * kPage);
  std::memset(arena.base() + first, 7, 2 * kPage);
  arena.free_staging(first);
  EXPECT_TRUE(resident(arena, first)) << "another page would come in its place, and the device would not know";
  const uint64_t again = arena.allocate_staging(2 * kPage);
  EXPECT_EQ(again, first);
  EXPECT_TRUE(zero(arena, again, 2 * kPage));
}

TEST(Arena, ClearsWhatAnOwnerHadOfPinnedMemoryAndTouchesNoPageThatNobodyHad) {
  Arena arena(16 * kPage);
  arena.is_pinned(link::Arena::Pinned::Staging, 16 * kPage);
  const uint64_t first = arena.allocate_staging(2 * kPage);
  EXPECT_FALSE(resident(arena, first))
      << "a ring of many MiB, of which little is used, costs a page for each that is touched";
  std::memset(arena.base() + first, 7, 2 * kPage);
  arena.free_staging(first);
  const uint64_t longer = arena.allocate_staging(6 * kPage);
  ASSERT_EQ(longer, first);
  EXPECT_FALSE(resident(arena, longer + 2 * kPage));
  EXPECT_FALSE(resident(arena, longer + 5 * kPage));
  EXPECT_TRUE(zero(arena, longer, 6 * kPage));
}

TEST(Arena, AllocatesInThePinnedPartOnly) {
  Arena arena(16 * kPage);
  const uint64_t before = arena.allocate_staging(6 * kPage), beyond = arena.allocate_staging(4 * kPage);
  arena.is_pinned(link::Arena::Pinned::Staging, 8 * kPage);  // ends inside of `beyond`
  EXPECT_EQ(arena.staging_limit(), 8 * kPage);
  EXPECT_THROW(arena.allocate_staging(kPage), Error);
  arena.free_staging(beyond);
  const uint64_t end = arena.allocate_staging(2 * kPage);
  EXPECT_EQ(end, beyond);
  EXPECT_THROW(arena.allocate_staging(kPage), Error);
  arena.free_staging(before);
  EXPECT_EQ(arena.allocate_staging(6 * kPage), before);
  arena.is_pinned(link::Arena::Pinned::Staging, 16 * kPage);  // never more than it was
  EXPECT_EQ(arena.staging_limit(), 8 * kPage);
}

}  // namespace
}  // namespace isthmus::link
