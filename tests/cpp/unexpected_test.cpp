// Messages that come before their receives.
#include <gtest/gtest.h>

#include "messages/unexpected.hpp"

namespace isthmus::messages {
namespace {

link::FrameHeader frame(link::FrameKind kind, uint32_t source, int32_t tag, uint64_t id) {
  link::FrameHeader h;
  h.kind = kind;
  h.source = source;
  h.tag = tag;
  h.id = id;
  h.total = h.digest = 100;
  return h;
}

TEST(UnexpectedMessages, OfARankAreFoundInTheOrderOfTheirSends) {
  UnexpectedMessages messages;
  messages.prepare();
  messages.add(frame(link::FrameKind::RequestToSend, 0, 5, 1), nullptr);
  messages.add(frame(link::FrameKind::RequestToSend, 1, 5, 2), nullptr);
  messages.add(frame(link::FrameKind::RequestToSend, 0, 5, 3), nullptr);
  const auto of = [&](int source) {
    return messages.first([source](const UnexpectedMessage &m) { return m.source == source; });
  };
  EXPECT_EQ(of(0)->id, 1u);
  messages.done(*of(0));
  EXPECT_EQ(of(0)->id, 3u);
  EXPECT_EQ(of(1)->id, 2u);
  EXPECT_EQ(of(2), nullptr);
}

TEST(UnexpectedMessages, OneThatIsClaimedIsNobodyElses) {
  Operation receive;
  UnexpectedMessages messages;
  UnexpectedMessage &m = messages.add(frame(link::FrameKind::Message, 0, 5, 1), nullptr);
  EXPECT_EQ(messages.flowing(0, 1), &m);
  m.claimed = &receive;
  EXPECT_EQ(messages.first([](const UnexpectedMessage &) { return true; }), nullptr);
  EXPECT_EQ(messages.claimed_by(&receive), &m);
  m.complete = true;
  EXPECT_EQ(messages.flowing(0, 1), nullptr);
  EXPECT_EQ(messages.take_claim(), &receive);
  EXPECT_EQ(messages.take_claim(), nullptr);
}

TEST(UnexpectedMessages, OnlyOneWithItsDataHasMemoryForIt) {
  UnexpectedMessages messages;
  EXPECT_EQ(messages.add(frame(link::FrameKind::Message, 0, 5, 1), nullptr).data.size(), 100u);
  const UnexpectedMessage &placed = messages.add(frame(link::FrameKind::Placed, 0, 0, 2), nullptr);
  EXPECT_EQ(placed.lies, 0);
  EXPECT_FALSE(placed.flows());
  EXPECT_TRUE(messages.add(frame(link::FrameKind::RequestToSend, 0, 5, 3), nullptr).announced);
  EXPECT_EQ(messages.flowing(0, 2), nullptr);
}

}  // namespace
}  // namespace isthmus::messages
