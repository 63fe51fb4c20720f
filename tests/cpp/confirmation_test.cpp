// What ranks have made together is all ranks' or nobody's, also where one of them hears no answer at first.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.hpp"
#include "comm/confirmation.hpp"
#include "patience.hpp"

namespace isthmus::comm {
namespace {

constexpr Subject kGrow{Subject::Of::Grow, 7}, kShrink{Subject::Of::Shrink, 0};
const std::vector<int> kNobody;

using Members = std::vector<std::shared_ptr<Communicator>>;

// Ranks, which are threads of this process; each calls `act`.
void on_all(int world, const std::function<void(int)> &act) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        act(rank);
      } catch (const Error &e) { ADD_FAILURE() << "rank " << rank << ": " << e.text(); }
    });
  for (auto &t : threads) t.join();
}

Members begun(int world) {
  std::array<std::byte, 128> id{};
  Settings settings;
  settings.set("ISTHMUS_TIMEOUT", formatted("{}", isthmus_test::soon()));
  bootstrap::create_unique_id(settings, id);
  Members made(static_cast<size_t>(world));
  on_all(world, [&](int rank) {
    InitOptions o;
    o.rank = rank;
    o.world = world;
    o.unique_id = id.data();
    o.name = "whole";
    o.settings = settings;
    made[static_cast<size_t>(rank)] = Communicator::init(o);
  });
  return made;
}

// A communicator, what its ranks have made of it, and what each of them knows of that.
struct Made {
  explicit Made(int world) : whole(begun(world)), made(whole.size()), of(whole.size()) {
    on_all(world, [&](int rank) { made[at(rank)] = whole[at(rank)]->split(0, 0, "made"); });
  }
  static size_t at(int rank) { return static_cast<size_t>(rank); }
  Confirmed confirm(int rank, double seconds, bool has = true) {
    const AbortWatch watch(whole[at(rank)]->local());
    return of[at(rank)].confirm(*whole[at(rank)], kGrow, has ? made[at(rank)] : nullptr, has,
                                {kNobody, Deadline(seconds), watch});
  }
  std::optional<Confirmed> resume(int rank, Subject what, double seconds, const std::vector<int> &suspects = kNobody) {
    const AbortWatch watch(whole[at(rank)]->local());
    return of[at(rank)].resume(*whole[at(rank)], what, {suspects, Deadline(seconds), watch});
  }
  // Rank 0 calls, and hears no answer, because rank 1 has not called.
  void late() {
    try {
      confirm(0, 0.05);
      ADD_FAILURE() << "rank 1 has not called";
    } catch (const Error &e) {
      EXPECT_EQ(e.code(), Code::Timeout);
      EXPECT_EQ(e.ranks(), std::vector<int>{1});
    }
    EXPECT_EQ(of[0].subject(*whole[0]), kGrow);
  }
  const Members whole;
  Members made;
  std::vector<Confirmation> of;
};

TEST(Confirmation, AllKeepWhatAllHave) {
  Made m(2);
  on_all(2, [&](int rank) { EXPECT_EQ(m.confirm(rank, isthmus_test::soon()).made, m.made[Made::at(rank)]); });
  EXPECT_EQ(m.of[0].subject(*m.whole[0]), Subject()) << "nothing waits for an answer";
}

TEST(Confirmation, NobodyKeepsWhatOneHasNot) {
  Made m(2);
  on_all(2, [&](int rank) {
    const Confirmed all = m.confirm(rank, isthmus_test::soon(), rank == 0);
    EXPECT_FALSE(all.made);
    EXPECT_FALSE(all.may_try_again);
    EXPECT_TRUE(all.out.empty());
  });
}

TEST(Confirmation, WhatARankHasMadeIsKeptUntilTheSameCallHearsThatAllHaveIt) {
  Made m(2);
  m.late();
  on_all(2, [&](int rank) {
    const auto all = rank == 0 ? m.resume(0, kGrow, isthmus_test::soon()) : m.confirm(1, isthmus_test::soon());
    ASSERT_TRUE(all);
    EXPECT_EQ(all->made, m.made[Made::at(rank)]);
  });
  EXPECT_FALSE(m.resume(0, kGrow, isthmus_test::soon())) << "once";
}

TEST(Confirmation, AnotherCallThatComesFirstMeansThatNobodyKeepsIt) {
  Made m(2);
  m.late();
  on_all(2, [&](int rank) {
    const auto all = rank == 0 ? m.resume(0, kShrink, isthmus_test::soon()) : m.confirm(1, isthmus_test::soon());
    ASSERT_TRUE(all);
    EXPECT_FALSE(all->made);
    EXPECT_TRUE(all->may_try_again);
  });
}

TEST(Confirmation, AnAgreementOfTheProgramIsNotTakenForAWordOnWhatWasMade) {
  Made m(2);
  m.late();
  on_all(2, [&](int rank) {
    rank::Rank &local = m.whole[Made::at(rank)]->local();
    if (rank == 0) m.of[0].settle(*m.whole[0], kNobody, false, Deadline(isthmus_test::soon()));
    else EXPECT_FALSE(m.confirm(1, isthmus_test::soon()).made) << "rank 0 has gone on to something else";
    const uint64_t mine = rank == 0 ? 5 : 6;
    EXPECT_EQ(local.agreement().agree(mine, kNobody, false, Deadline(isthmus_test::soon())).flags, 4u);
  });
  EXPECT_EQ(m.of[0].subject(*m.whole[0]), Subject());
}

TEST(Confirmation, TheNextCallNamesARankThatStopsBetweenTheAgreements) {
  Made m(3);
  on_all(3, [&](int rank) {
    if (rank == 1) return;  // it does not come
    if (rank == 2) {
      const Confirmed all = m.confirm(2, isthmus_test::soon());
      EXPECT_FALSE(all.made);
      EXPECT_EQ(all.out, std::vector<int>{1});
      return;
    }
    EXPECT_THROW(m.confirm(0, 0.05), Error);
    const auto all = m.resume(0, kGrow, isthmus_test::soon(), {1});
    ASSERT_TRUE(all);
    EXPECT_FALSE(all->made);
    EXPECT_EQ(all->out, std::vector<int>{1});
  });
}

// Rank 1 has said its word when its call ends; then rank 2 says its own.
TEST(Confirmation, WhereTheOthersHaveItAnotherCallIsToldSoAndTheSameOneGetsIt) {
  Made m(3);
  std::thread leads([&] { EXPECT_EQ(m.confirm(0, isthmus_test::soon()).made, m.made[0]); });
  std::string said;
  for (bool first = true; said.find("has called it and waits") == std::string::npos; first = false) try {
      if (first) m.confirm(1, 0.05);
      else m.resume(1, kGrow, 0.05);
      ADD_FAILURE() << "rank 2 has not called";
      break;
    } catch (const Error &e) { said = e.text(); }
  EXPECT_EQ(m.confirm(2, isthmus_test::soon()).made, m.made[2]);
  leads.join();
  for (int i = 0; i < 2; ++i) try {
      m.resume(1, kShrink, isthmus_test::soon());
      ADD_FAILURE() << "the others have it";
    } catch (const Error &e) {
      EXPECT_EQ(e.code(), Code::Aborted);
      EXPECT_NE(e.text().find("make that call again"), std::string::npos) << e.text();
    }
  const auto all = m.resume(1, kGrow, isthmus_test::soon());
  ASSERT_TRUE(all);
  EXPECT_EQ(all->made, m.made[1]);
}

TEST(Confirmation, AnAbortEndsTheWaitAndWhatWasMadeIsKept) {
  Made m(2);
  const AbortWatch watch(m.whole[0]->local());
  m.whole[0]->abort("the test");
  try {
    m.of[0].confirm(*m.whole[0], kGrow, m.made[0], true, {kNobody, Deadline(isthmus_test::soon()), watch});
    ADD_FAILURE() << "it was aborted";
  } catch (const Error &e) { EXPECT_EQ(e.code(), Code::Aborted); }
  on_all(2, [&](int rank) {
    const auto all = rank == 0 ? m.resume(0, kGrow, isthmus_test::soon()) : m.confirm(1, isthmus_test::soon());
    ASSERT_TRUE(all);
    EXPECT_EQ(all->made, m.made[Made::at(rank)]);
  });
}

}  // namespace
}  // namespace isthmus::comm
