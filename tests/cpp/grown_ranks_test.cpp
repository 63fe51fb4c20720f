// Which ranks of a grown communicator are old members and which are newcomers.
#include <gtest/gtest.h>

#include "comm/grow_exchange.hpp"

namespace isthmus::comm {
namespace {

std::string refused(int members, int newcomers, std::vector<int> slots) {
  try {
    GrownRanks::of(members, newcomers, std::move(slots));
  } catch (const Error &e) {
    EXPECT_EQ(e.code(), Code::Argument);
    return e.text();
  }
  return "";
}

TEST(GrownRanks, WithoutSlotsTheNewcomersStandBehindTheMembers) {
  const GrownRanks ranks = GrownRanks::of(3, 2, {});
  EXPECT_EQ(ranks.members, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(ranks.newcomers, (std::vector<int>{3, 4}));
  EXPECT_EQ(ranks.world(), 5);
}

TEST(GrownRanks, TheMembersHaveTheNumbersThatTheSlotsLeaveInTheirOrder) {
  const GrownRanks ranks = GrownRanks::of(3, 2, {3, 0});
  EXPECT_EQ(ranks.newcomers, (std::vector<int>{0, 3}));
  EXPECT_EQ(ranks.members, (std::vector<int>{1, 2, 4}));
}

TEST(GrownRanks, ASlotTwiceOrOutsideOrOneTooFewIsRefused) {
  EXPECT_NE(refused(2, 2, {1, 1}).find("slot 1 stands twice"), std::string::npos);
  EXPECT_NE(refused(2, 1, {3}).find("slot 3 is not from 0 to 2"), std::string::npos);
  EXPECT_NE(refused(2, 1, {-1}).find("slot -1 is not from 0 to 2"), std::string::npos);
  EXPECT_NE(refused(2, 2, {1}).find("1 slots for 2 newcomers"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::comm
