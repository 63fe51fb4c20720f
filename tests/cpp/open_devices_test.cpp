// What a process has on a device: whose streams a communicator gets, and where the memory lies that the device pins.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "link/arena.hpp"
#include "plain_runtime.hpp"
#include "process/open_devices.hpp"

namespace isthmus::process {
namespace {

using isthmus_test::PlainRuntime, isthmus_test::PlainStream;

class OwnStreams : public testing::Test {
 protected:
  std::shared_ptr<device::Stream> one_more() { return devices.own_stream(runtime, 0, 0); }
  static PlainStream &plain(const std::shared_ptr<device::Stream> &stream) { return dynamic_cast<PlainStream &>(*stream); }
  void SetUp() override {
    for (int i = 0; i < OpenDevices::kMostOwnStreams; ++i) all.push_back(one_more());
  }
  link::Arena arena{8 << 20};
  OpenDevices devices{arena};
  PlainRuntime runtime;
  std::vector<std::shared_ptr<device::Stream>> all;
};

TEST_F(OwnStreams, AreOneForEachCommunicatorAndThenTheLeastShared) {
  EXPECT_EQ(std::set(all.begin(), all.end()).size(), all.size());
  std::set<std::shared_ptr<device::Stream>> shared;
  std::vector<std::shared_ptr<device::Stream>> held;
  for (int i = 0; i < OpenDevices::kMostOwnStreams; ++i) shared.insert(held.emplace_back(one_more()));
  EXPECT_EQ(shared, std::set(all.begin(), all.end()));
}

// A stop drops what stands on the stream, and is repeated until the stream is empty.
TEST_F(OwnStreams, ThatWereStoppedAreForNobodyElse) {
  plain(all[0]).stopped = 1;
  for (int i = 0; i < 3 * OpenDevices::kMostOwnStreams; ++i) {
    all.push_back(one_more());
    ASSERT_NE(all.back(), all[0]);
  }
}

TEST_F(OwnStreams, ThatHaveFailedAreForNobodyElse) {
  for (const auto &stream : all) plain(stream).state = {Code::Device, "it has failed"};
  const std::set old(all.begin(), all.end());
  EXPECT_FALSE(old.contains(one_more()));
}

// ---- pages of staging memory ---------------------------------------------------------------------------------------------------------

constexpr int kNoSuchNode = 1000;

TEST(StagingPages, OfANodeThatThereIsNotLieAnywhereAndTheLossIsTold) {
  link::Arena arena(8 << 20);
  OpenDevices devices(arena);
  PlainRuntime runtime(kNoSuchNode);
  EXPECT_EQ(devices.arena_on(runtime, 0), arena.base());
  EXPECT_EQ(runtime.registered, arena.staging_limit());
  const link::StagingPages pages = arena.staging_pages();
  EXPECT_EQ(pages.node, kNoSuchNode);
  EXPECT_NE(pages.node_lost, "");
  EXPECT_NE(pages.lost().find("NUMA node"), std::string::npos) << pages.lost();
  const uint64_t offset = arena.allocate_staging(64 << 10);
  std::memset(arena.base() + offset, 7, 64 << 10);  // it is there all the same
  arena.free_staging(offset);
  devices.end();
}

TEST(StagingPages, ThatAreFreedWhileADevicePinsThemAreKept) {
  link::Arena arena(8 << 20);
  OpenDevices devices(arena);
  PlainRuntime runtime;
  const uint64_t offset = arena.allocate_staging(64 << 10);
  std::memset(arena.base() + offset, 7, 64 << 10);
  runtime.meanwhile = [&] { arena.free_staging(offset); };
  devices.arena_on(runtime, 0);
  EXPECT_EQ(arena.base()[offset], std::byte{7}) << "another page is there now, and the device has the old one";
  EXPECT_EQ(arena.base()[arena.allocate_staging(64 << 10)], std::byte{0});
  devices.end();
}

TEST(StagingPages, OfTheReserveAreReachedWhenItIsAskedForAndOnce) {
  link::Arena arena(8 << 20);
  OpenDevices devices(arena);
  PlainRuntime runtime;
  devices.arena_on(runtime, 0);
  EXPECT_EQ(runtime.registered, arena.staging_limit());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(devices.reserve_on(runtime, 0), arena.base());
  EXPECT_EQ(runtime.registered, arena.staging_limit() + arena.reserve_limit());
  devices.end();
}

// What the kernel is to do with pages there, as it says itself: "default", "prefer:0". Empty: it does not say.
std::string policy_at(const std::byte *at) {
  std::ifstream maps("/proc/self/numa_maps");
  std::string policy;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    uintptr_t begin = 0;
    std::string of_it;
    words >> std::hex >> begin >> of_it;
    if (begin > reinterpret_cast<uintptr_t>(at)) break;
    policy = of_it;
  }
  return policy;
}

TEST(StagingPages, LieOnTheNodeOfTheDevice) {
  link::Arena arena(8 << 20);
  OpenDevices devices(arena);
  PlainRuntime runtime(0);
  devices.arena_on(runtime, 0);
  const uint64_t offset = arena.allocate_staging(1 << 20);
  std::memset(arena.base() + offset, 7, 1 << 20);
  const link::StagingPages pages = arena.staging_pages();
  EXPECT_EQ(pages.node, 0);
  if (!pages.node_lost.empty()) GTEST_SKIP() << "this kernel takes no node: " << pages.node_lost;
  EXPECT_GT(pages.looked, 0u);
  EXPECT_EQ(pages.elsewhere, 0u) << pages.lost();
  // A host with one node has all pages there whatever is asked.
  const std::string policy = policy_at(arena.base() + offset);
  EXPECT_TRUE(policy.empty() || policy.starts_with("prefer")) << policy;
  devices.end();
}

TEST(StagingPages, AreHugeOrSayWhyNot) {
  link::Arena arena(8 << 20);
  arena.place_staging(-1);
  const uint64_t offset = arena.allocate_staging(8 << 20);
  std::memset(arena.base() + offset, 7, 8 << 20);
  const link::StagingPages pages = arena.staging_pages();
  if (pages.huge_bytes == 0 && pages.huge_lost.empty()) GTEST_SKIP() << "the kernel may give huge pages, and has none now";
  EXPECT_NE(pages.huge_bytes != 0, !pages.huge_lost.empty());
}

TEST(StagingPages, AreAskedForOnceAndOnlyForADevice) {
  link::Arena arena(8 << 20);
  EXPECT_FALSE(arena.staging_pages().asked) << "host ranks keep a sparse file, and small pages";
  arena.place_staging(kNoSuchNode);
  arena.place_staging(0);
  EXPECT_EQ(arena.staging_pages().node, kNoSuchNode) << "what is pinned stays where it is";
}

}  // namespace
}  // namespace isthmus::process
