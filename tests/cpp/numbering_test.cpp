// The numbers of ranks: slots, of which some are holes.
#include "comm/numbering.hpp"

#include <gtest/gtest.h>

namespace isthmus::comm {
namespace {

using List = std::vector<int>;

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

TEST(Numbering, WithoutHolesASlotIsARank) {
  const Numbering n(3);
  EXPECT_EQ(n.ranks(), 3);
  EXPECT_EQ(n.slots(), 3);
  EXPECT_FALSE(n.has_holes());
  EXPECT_TRUE(n.consecutive());
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(n.slot(rank) == rank && n.rank(rank) == rank);
}

TEST(Numbering, EveryRankHasASlotAndTheOtherSlotsAreHoles) {
  const Numbering n({1, 3, 4}, 6);
  EXPECT_EQ(n.ranks(), 3);
  EXPECT_EQ(n.slots(), 6);
  EXPECT_TRUE(n.has_holes());
  EXPECT_EQ(n.text(), "1,3,4");
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(n.rank(n.slot(rank)), rank);
  for (const int hole : {0, 2, 5, -1, 6}) EXPECT_EQ(n.rank(hole), -1) << hole;
  EXPECT_EQ(n.slots_of(List{2, 0, 7, -1}), (List{4, 1})) << "what is no rank is left out";
  EXPECT_EQ(n.ranks_of("call", List{4, 1}), (List{2, 0}));
}

TEST(Numbering, HolesInFrontAndBehindLeaveTheRanksConsecutive) {
  EXPECT_TRUE(Numbering({1, 2}, 4).consecutive());
  EXPECT_TRUE(Numbering({3}, 4).consecutive());
  EXPECT_FALSE(Numbering({0, 2}, 3).consecutive());
}

TEST(Numbering, AHoleIsNamedAsOneAndTheMembersAreListed) {
  const Numbering n({0, 2}, 3);
  const std::string hole = refused([&] { n.rank_of("send: peer", 1); });
  EXPECT_NE(hole.find("send: peer: slot 1 is a hole"), std::string::npos) << hole;
  EXPECT_NE(hole.find("the members are 0,2"), std::string::npos) << hole;
  EXPECT_EQ(refused([&] { n.rank_of("shrink", 3); }), "shrink: there is no rank 3 among 3");
  EXPECT_EQ(refused([&] { n.rank_of("shrink", -1); }), "shrink: there is no rank -1 among 3");
}

TEST(Numbering, WhoIsLeftKeepsItsSlotOrIsCountedAnew) {
  const Numbering n({0, 2, 5}, 7);
  const Numbering kept = n.left(List{1, 2}, Numbers::Kept), dense = n.left(List{1, 2}, Numbers::Dense);
  EXPECT_EQ(kept.members(), (List{2, 5}));
  EXPECT_EQ(kept.slots(), 7);
  EXPECT_EQ(dense.members(), (List{0, 1}));
  EXPECT_EQ(dense.slots(), 2);
}

TEST(Numbering, SlotsThatDoNotAscendOrLieOutsideAreRefused) {
  for (const auto &members : {List{1, 1}, List{2, 1}, List{-1, 0}, List{0, 3}})
    EXPECT_NE(refused([&] { Numbering(members, 3); }).find("must ascend, from 0 to 2"), std::string::npos);
}

TEST(Numbering, TheRanksOfAnErrorBecomeSlots) {
  const auto ranks_from = [](const Numbering &n) {
    try {
      by_slots(n, [] { throw Error(Code::PeerLost, "lost", {0, 1}); });
    } catch (const Error &e) { return e.ranks(); }
    return List{};
  };
  EXPECT_EQ(ranks_from(Numbering(2)), (List{0, 1}));
  EXPECT_EQ(ranks_from(Numbering({1, 3}, 4)), (List{1, 3}));
  EXPECT_EQ(by_slots(Numbering({1, 3}, 4), [] { return 7; }), 7);
}

}  // namespace
}  // namespace isthmus::comm
