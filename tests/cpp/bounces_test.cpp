// The pinned memory that plain host memory goes through, where the staging memory has no room.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "collective/bounces.hpp"
#include "eventually.hpp"
#include "plain_runtime.hpp"

namespace isthmus::collective {
namespace {

// The driver may wait until the device is idle, and the device for what the thread does next that gives a buffer back.
TEST(Bounces, ABufferComesBackWhileTheDriverPinsAnother) {
  link::Arena arena(1 << 20);  // an eighth is less than the least ring
  isthmus_test::PlainRuntime runtime;
  Bounces bounces(arena, arena.base(), runtime, 0, "test");
  const Bounce first = bounces.take(4096, 0);
  EXPECT_EQ(first.staging, 0u);
  std::atomic<bool> given{false};
  std::thread giver;
  runtime.meanwhile = [&] {
    giver = std::thread([&] {
      bounces.give(first);
      given.store(true);
    });
    EXPECT_TRUE(isthmus_test::eventually([&] { return given.load(); }));
  };
  const Bounce second = bounces.take(4096, 0);
  giver.join();
  EXPECT_NE(second.host, first.host);
  runtime.meanwhile = [] { ADD_FAILURE() << "a free buffer is taken again"; };
  EXPECT_EQ(bounces.take(4096, 0).host, first.host);
  bounces.give(first);
  bounces.give(second);
}

}  // namespace
}  // namespace isthmus::collective
