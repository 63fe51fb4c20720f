// Which ranks of a grown communicator are old members and which are newcomers.
#include <gtest/gtest.h>

#include "comm/grow_exchange.hpp"

namespace isthmus::comm {
namespace {

using List = std::vector<int>;

GrownRanks dense(int members, int newcomers, List slots) {
  return GrownRanks::of(Numbering(members), newcomers, std::move(slots), Numbers::Dense);
}

template <class F>
std::string refused(F call) {
  try {
    call();
  } catch (const Error &e) {
    EXPECT_EQ(e.code(), Code::Argument);
    return e.text();
  }
  return "";
}

TEST(GrownRanks, WithoutSlotsTheNewcomersStandBehindTheMembers) {
  const GrownRanks ranks = dense(3, 2, {});
  EXPECT_EQ(ranks.members, (List{0, 1, 2}));
  EXPECT_EQ(ranks.newcomers, (List{3, 4}));
  EXPECT_EQ(ranks.slots, ranks.newcomers);
  EXPECT_EQ(ranks.world(), 5);
  EXPECT_FALSE(ranks.numbering.has_holes());
}

TEST(GrownRanks, TheMembersHaveTheNumbersThatTheSlotsLeaveInTheirOrder) {
  const GrownRanks ranks = dense(3, 2, {3, 0});
  EXPECT_EQ(ranks.newcomers, (List{0, 3}));
  EXPECT_EQ(ranks.members, (List{1, 2, 4}));
  EXPECT_EQ(ranks.slots, (List{0, 3}));
}

TEST(GrownRanks, DenseNumbersCloseTheHolesThatThereWere) {
  const GrownRanks ranks = GrownRanks::of(Numbering({1, 4}, 6), 1, {}, Numbers::Dense);
  EXPECT_EQ(ranks.members, (List{0, 1}));
  EXPECT_EQ(ranks.newcomers, (List{2}));
  EXPECT_EQ(ranks.numbering.slots(), 3);
}

TEST(GrownRanks, WhereNumbersAreKeptNewcomersHaveTheLowestHolesThenSlotsBehind) {
  const Numbering old({1, 3}, 4);  // holes: 0 and 2
  const GrownRanks one = GrownRanks::of(old, 1, {}, Numbers::Kept), three = GrownRanks::of(old, 3, {}, Numbers::Kept);
  EXPECT_EQ(one.slots, (List{0}));
  EXPECT_EQ(one.numbering.members(), (List{0, 1, 3}));
  EXPECT_EQ(one.numbering.slots(), 4);
  EXPECT_EQ(one.newcomers, (List{0}));
  EXPECT_EQ(one.members, (List{1, 2}));
  EXPECT_EQ(three.slots, (List{0, 2, 4}));
  EXPECT_EQ(three.numbering.members(), (List{0, 1, 2, 3, 4}));
  EXPECT_EQ(three.newcomers, (List{0, 2, 4}));
  EXPECT_EQ(three.members, (List{1, 3}));
}

TEST(GrownRanks, WhereNumbersAreKeptASlotIsAHoleOrLiesBehindAndLeavesOtherHoles) {
  const Numbering old({1, 3}, 4);
  const GrownRanks ranks = GrownRanks::of(old, 2, {5, 2}, Numbers::Kept);
  EXPECT_EQ(ranks.numbering.members(), (List{1, 2, 3, 5}));
  EXPECT_EQ(ranks.numbering.slots(), 6);
  EXPECT_EQ(ranks.newcomers, (List{1, 3}));
  EXPECT_EQ(ranks.members, (List{0, 2}));
  EXPECT_NE(refused([&] { GrownRanks::of(old, 1, {3}, Numbers::Kept); }).find("slot 3 is not free"), std::string::npos);
  EXPECT_NE(refused([&] { GrownRanks::of(old, 1, {5}, Numbers::Kept); }).find("slot 5 is not from 0 to 4"),
            std::string::npos);
}

TEST(GrownRanks, ASlotTwiceOrOutsideOrOneTooFewIsRefused) {
  EXPECT_NE(refused([] { dense(2, 2, {1, 1}); }).find("slot 1 stands twice"), std::string::npos);
  EXPECT_NE(refused([] { dense(2, 1, {3}); }).find("slot 3 is not from 0 to 2"), std::string::npos);
  EXPECT_NE(refused([] { dense(2, 1, {-1}); }).find("slot -1 is not from 0 to 2"), std::string::npos);
  EXPECT_NE(refused([] { dense(2, 2, {1}); }).find("1 slots for 2 newcomers"), std::string::npos);
}

}  // namespace
}  // namespace isthmus::comm
