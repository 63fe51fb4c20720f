// The control messages that wait for one peer: what goes at once, and what goes along with the next message.
#include "bootstrap/outbox.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "base/handles.hpp"

namespace isthmus::bootstrap {
namespace {

struct Wire {
  UniqueFd here, there;
  net::FrameReader reader;

  Wire() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    here = UniqueFd(fds[0]);
    there = UniqueFd(fds[1]);
  }
  // The types of the messages that have come.
  std::vector<uint16_t> come() {
    std::vector<uint16_t> types;
    for (;;) {
      uint16_t type = 0;
      std::span<const std::byte> body;
      while (reader.next(type, body) == net::FrameReader::Result::Frame) types.push_back(type);
      const ssize_t n = net::recv_some(there.get(), reader.space());
      if (n <= 0) return types;
      reader.received(static_cast<size_t>(n));
    }
  }
};

using Types = std::vector<uint16_t>;

TEST(Outbox, WhatGoesAlongLeavesItIdleAndGoesWithTheNextMessageInOrder) {
  Wire wire;
  Outbox box;
  EXPECT_TRUE(box.idle());
  box.add_for_later(1, {});
  box.add_for_later(2, {});
  EXPECT_TRUE(box.idle());
  EXPECT_FALSE(box.empty());
  EXPECT_EQ(wire.come(), Types{});
  box.add(3, {});
  EXPECT_FALSE(box.idle());
  box.flush(wire.here.get());
  EXPECT_TRUE(box.empty());
  EXPECT_EQ(wire.come(), (Types{1, 2, 3}));
}

TEST(Outbox, WhatGoesAlongBehindMessagesThatWaitForTheKernelWaitsWithThem) {
  Wire wire;
  Outbox box;
  const std::vector<std::byte> large(60'000);
  size_t sent = 0;
  for (; box.empty(); ++sent) {
    box.add(1, large);
    box.flush(wire.here.get());
  }
  EXPECT_FALSE(box.idle());
  box.add_for_later(2, {});
  EXPECT_FALSE(box.idle());  // the kernel has yet to take what comes before it
  Types all;
  while (!box.empty()) {
    const Types more = wire.come();
    all.insert(all.end(), more.begin(), more.end());
    box.flush(wire.here.get());
  }
  const Types rest = wire.come();
  all.insert(all.end(), rest.begin(), rest.end());
  Types wanted(sent, 1);
  wanted.push_back(2);
  EXPECT_EQ(all, wanted);
}

TEST(Outbox, AFlushTakesAlsoWhatGoesAlong) {
  Wire wire;
  Outbox box;
  box.add_for_later(1, {});
  box.flush(wire.here.get());
  EXPECT_TRUE(box.empty());
  EXPECT_EQ(wire.come(), Types{1});
  box.add_for_later(2, {});
  box.clear();
  EXPECT_TRUE(box.empty());
  EXPECT_TRUE(box.idle());
}

}  // namespace
}  // namespace isthmus::bootstrap
