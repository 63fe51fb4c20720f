// Ranks agree: the same verdict on all that get one, whatever order messages take, whoever ends meanwhile, and whatever way is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rank/consensus.hpp"

namespace isthmus::rank {
namespace {

RankSet set_of(int world, const std::vector<int> &ranks) {
  RankSet s(world);
  for (const int r : ranks) s.add(r);
  return s;
}

RankSet all_of(int world) {
  RankSet s(world);
  for (int r = 0; r < world; ++r) s.add(r);
  return s;
}

// The ranks and the ways between them. Words from one rank to another arrive in order, or not at all once the way is cut.
struct World {
  struct Way {
    std::deque<Saying> words;
    bool cut = false, told = false;  // told: the receiver knows that the way is cut
  };
  int size;
  std::deque<Consensus> ranks;
  std::vector<std::vector<Way>> ways;             // [from][to]
  std::vector<char> called, dead, stopped, gone;  // gone: has left and lives
  std::vector<uint64_t> flags;

  explicit World(int n) : size(n), ways(n, std::vector<Way>(n)), called(n), dead(n), stopped(n), gone(n), flags(n) {
    for (int r = 0; r < n; ++r) ranks.emplace_back(r, n, all_of(n));
  }
  void send(int from) {
    for (auto &[to, word] : ranks[from].take_words())
      if (!dead[from] && !ways[from][to].cut) ways[from][to].words.push_back(std::move(word));
  }
  void contribute(int r, uint64_t given, const std::vector<int> &suspects = {}, bool alone = false) {
    called[r] = 1;
    flags[r] = given;
    ranks[r].contribute(given, set_of(size, suspects), alone);
    send(r);
  }
  bool deliver(int from, int to) {
    Way &way = ways[from][to];
    if (way.words.empty() || dead[to] || stopped[to]) return false;
    const Saying word = std::move(way.words.front());
    way.words.pop_front();
    ranks[to].hear(from, word);
    send(to);
    return true;
  }
  // What the rank had said and is still on its way arrives up to a word that chance chooses.
  void kill(int r, std::mt19937_64 &random) {
    dead[r] = 1;
    for (int q = 0; q < size; ++q) {
      auto &words = ways[r][q].words;
      words.resize(std::uniform_int_distribution<size_t>(0, words.size())(random));
      ways[r][q].cut = ways[q][r].cut = true;
      ways[q][r].words.clear();
    }
  }
  void cut(int a, int b) {
    for (auto [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      ways[from][to].cut = true;
      ways[from][to].words.clear();
    }
  }
  // The rank leaves its communicator and lives. What it has said arrives.
  void leave(int r) {
    gone[r] = 1;
    for (int q = 0; q < size; ++q) {
      ways[r][q].cut = ways[q][r].cut = true;
      ways[q][r].words.clear();
    }
  }
  // A rank learns of a cut way when it has heard what came before.
  bool tell_of_cut(int from, int to) {
    Way &way = ways[from][to];
    if (!way.cut || way.told || !way.words.empty() || dead[to] || stopped[to] || gone[to]) return false;
    way.told = true;
    ranks[to].gone(from, dead[from] ? Gone::Surely : gone[from] ? Gone::Left : Gone::Perhaps);
    send(to);
    return true;
  }
  bool move(std::mt19937_64 &random) {  // something at random; false: nothing is left to do
    std::vector<std::pair<int, int>> pairs;
    for (int a = 0; a < size; ++a)
      for (int b = 0; b < size; ++b) pairs.emplace_back(a, b);
    std::shuffle(pairs.begin(), pairs.end(), random);
    for (auto [from, to] : pairs)
      if (deliver(from, to) || tell_of_cut(from, to)) return true;
    return false;
  }
  void run(std::mt19937_64 &random) {
    int steps = 0;
    while (move(random)) ASSERT_LT(++steps, 100'000) << "the ranks never stop speaking";
  }
  void drain() {
    std::mt19937_64 random(1);
    run(random);
  }
  const std::optional<Verdict> &verdict(int r) const { return ranks[r].verdict(); }
};

// All living ranks that have a verdict have the same, and nobody's flags are passed over.
void check(const World &w, const std::string &what) {
  const Verdict *first = nullptr;
  for (int r = 0; r < w.size; ++r) {
    if (w.dead[r] || !w.verdict(r)) continue;
    if (!first) first = &*w.verdict(r);
    ASSERT_EQ(*w.verdict(r), *first) << what << ", rank " << r;
  }
  if (!first) return;
  for (int r = 0; r < w.size; ++r)
    if (!first->out.has(r)) { ASSERT_EQ(first->flags & w.flags[r], first->flags) << what << ", the flags of rank " << r; }
}

TEST(Consensus, GivesTheAndOfAllFlags) {
  World w(3);
  w.contribute(0, 0b0111);
  w.contribute(1, 0b1110);
  EXPECT_FALSE(w.verdict(0));
  w.contribute(2, 0b1111);
  w.drain();
  for (int r = 0; r < 3; ++r) EXPECT_EQ(w.verdict(r), (Verdict{0b0110, RankSet(3)})) << r;
}

TEST(Consensus, OfOneRankIsAtOnce) {
  World w(1);
  w.contribute(0, 5);
  EXPECT_EQ(w.verdict(0), (Verdict{5, RankSet(1)}));
}

TEST(Consensus, WaitsForARankThatHasNotCalledAndNamesIt) {
  World w(3);
  w.contribute(0, 1);
  w.contribute(1, 1);
  w.drain();
  EXPECT_FALSE(w.verdict(0) || w.verdict(1));
  EXPECT_EQ(w.ranks[0].unanswered().list(), std::vector{2});
  EXPECT_EQ(w.ranks[1].leader(), 0);
  EXPECT_EQ(w.ranks[1].unanswered().count(), 0) << "who leads has called, and knows for whom it waits";
}

TEST(Consensus, WhoLeadsKnowsAllThatHaveNotCalled) {
  World w(5);
  for (const int r : {0, 2, 4}) w.contribute(r, 1);
  w.drain();
  EXPECT_EQ(w.ranks[0].unanswered().list(), (std::vector{1, 3}));
  w.contribute(0, 1, {1});
  w.drain();
  EXPECT_EQ(w.ranks[0].unanswered().list(), std::vector{3});
}

TEST(Consensus, WhoLeadsAndHasNotCalledSinceTheLastCallFailedIsWhoDoesNotAnswer) {
  World w(3);
  w.contribute(1, 1);
  w.drain();
  EXPECT_EQ(w.ranks[1].unanswered().list(), std::vector{0}) << "it has never called";
  w.contribute(0, 1);
  w.drain();
  EXPECT_EQ(w.ranks[1].unanswered().count(), 0);
  w.ranks[1].withdraw();
  w.contribute(1, 1);
  w.drain();
  EXPECT_EQ(w.ranks[1].unanswered().count(), 0) << "rank 0 is in its call still, and says so";
  w.ranks[1].withdraw();
  w.stopped[0] = 1;
  w.contribute(1, 1);
  w.drain();
  EXPECT_EQ(w.ranks[1].unanswered().list(), std::vector{0}) << "it has called before, and not again";
}

TEST(Consensus, WhoHasPromisedAndDoesNotAcceptIsWhoDoesNotAnswer) {
  World w(3);
  for (int r = 0; r < 3; ++r) w.contribute(r, 1);
  while (w.ranks[0].unanswered().count() > 0) {  // until rank 0 has both promises, and proposes
    w.deliver(0, 1), w.deliver(0, 2), w.deliver(1, 0), w.deliver(2, 0);
    if (w.ways[0][2].words.size() == 1 && w.ways[0][2].words.front().kind == Saying::Kind::Propose) break;
  }
  w.stopped[2] = 1;
  w.drain();
  EXPECT_FALSE(w.verdict(0));
  EXPECT_EQ(w.ranks[0].unanswered().list(), std::vector{2});
  w.contribute(0, 1, {2});
  w.drain();
  for (const int r : {0, 1}) EXPECT_EQ(w.verdict(r), (Verdict{1, RankSet(3)})) << "what may have been accepted stays";
}

TEST(Consensus, GoesOnWithoutARankThatOneProgramNamesAndTheRankHearsIt) {
  World w(4);
  w.contribute(1, 3);
  w.contribute(2, 2, {0});  // rank 0 is stopped, so nobody leads until the next rank does
  w.stopped[0] = 1;
  w.contribute(3, 7);
  w.drain();
  const Verdict without{2, set_of(4, {0})};
  for (int r = 1; r < 4; ++r) EXPECT_EQ(w.verdict(r), without) << r;
  w.stopped[0] = 0;
  w.contribute(0, 1);
  w.drain();
  EXPECT_EQ(w.verdict(0), without);
}

TEST(Consensus, TheLastOfManyGoesOnWhereTheOthersHaveEnded) {
  World w(3);
  std::mt19937_64 random(1);
  w.contribute(2, 9);
  w.kill(0, random);
  w.kill(1, random);
  w.drain();
  EXPECT_EQ(w.verdict(2), (Verdict{9, set_of(3, {0, 1})}));
}

TEST(Consensus, OfTwoThatLoseEachOtherNeitherGoesOn) {
  World w(2);
  w.cut(0, 1);
  w.contribute(0, 1);
  w.contribute(1, 1);
  w.drain();
  for (int r = 0; r < 2; ++r) {
    EXPECT_FALSE(w.verdict(r));
    EXPECT_TRUE(w.ranks[r].too_few());
  }
  w.contribute(1, 1, {}, true);
  w.drain();
  EXPECT_EQ(w.verdict(1), (Verdict{1, set_of(2, {0})})) << "the program allows a minority";
}

TEST(Consensus, WhereTheWayBetweenTwoIsCutTheHigherOneIsLeftOutAndHearsItFromAThird) {
  World w(3);
  w.cut(0, 1);
  ASSERT_TRUE(w.tell_of_cut(0, 1) && w.tell_of_cut(1, 0));
  w.contribute(0, 1);
  ASSERT_TRUE(w.deliver(0, 2)) << "before the word of the higher one";
  for (const int r : {1, 2}) w.contribute(r, 1);
  w.drain();
  for (int r = 0; r < 3; ++r) EXPECT_EQ(w.verdict(r), (Verdict{1, set_of(3, {1})})) << r;
}

TEST(Consensus, WhomARankSuspectedThatHasEndedSinceGoesOn) {
  World w(4);
  w.contribute(0, 1, {2});
  ASSERT_TRUE(w.deliver(0, 1));
  ASSERT_TRUE(w.deliver(0, 2)) << "who suspects it";
  std::mt19937_64 random(1);
  w.kill(0, random);
  for (const int r : {1, 2, 3}) w.contribute(r, 1);
  w.drain();
  for (const int r : {1, 2, 3}) EXPECT_EQ(w.verdict(r), (Verdict{1, set_of(4, {0})})) << r;
}

TEST(Consensus, WhomARankSuspectedThatHasLeftSinceGoesOn) {
  World w(3);
  w.contribute(0, 1, {1, 2});
  w.drain();
  w.contribute(1, 1);
  w.contribute(2, 1);
  w.drain();
  EXPECT_TRUE(w.ranks[1].too_few() && w.ranks[2].too_few());
  w.leave(0);
  w.drain();
  for (const int r : {1, 2}) EXPECT_EQ(w.verdict(r), (Verdict{1, set_of(3, {0})})) << r;
}

TEST(Consensus, WhomARankSuspectedThatIsOutOfReachSinceGoesOn) {
  World w(3);
  w.contribute(0, 1);
  w.cut(0, 1);
  ASSERT_TRUE(w.tell_of_cut(1, 0));
  ASSERT_TRUE(w.deliver(0, 2) && w.deliver(0, 2)) << "it leads, and suspects rank 1";
  w.cut(0, 2);
  for (const int r : {1, 2}) w.contribute(r, 1);
  w.drain();
  for (const int r : {1, 2}) EXPECT_EQ(w.verdict(r), (Verdict{1, set_of(3, {0})})) << r;
}

TEST(Consensus, WhoIsWaitedForAgainWhileALeaderProposesIsAskedBeforeTheyAreTooFew) {
  World w(3);
  w.cut(1, 2);
  ASSERT_TRUE(w.tell_of_cut(1, 2) && w.tell_of_cut(2, 1));
  w.contribute(1, 1);
  while (w.deliver(1, 0)) {}
  w.contribute(0, 1);
  while (w.deliver(0, 1) || w.deliver(1, 0)) {
    if (!w.ways[0][1].words.empty() && w.ways[0][1].words.front().kind == Saying::Kind::Propose) break;
  }
  std::mt19937_64 random(1);
  w.kill(1, random);
  w.contribute(2, 1);
  w.drain();
  for (const int r : {0, 2}) {
    ASSERT_TRUE(w.verdict(r)) << r;
    EXPECT_FALSE(w.ranks[r].too_few());
  }
}

TEST(Consensus, WhomTheLeaderAsksAnewIsNotToldThatTheyAreTooFew) {
  Consensus one(1, 6, all_of(6));
  const auto hear = [&](Saying::Kind kind, uint64_t ballot) {
    Saying word = word_of(kind, ballot);
    word.ranks = set_of(6, {3, 4, 5});
    word.round = 1;
    one.hear(0, word);
  };
  for (const int q : {3, 4, 5}) one.gone(q, Gone::Perhaps);
  one.contribute(1, RankSet(6), false);
  hear(Saying::Kind::Prepare, 1);
  hear(Saying::Kind::TooFew, 0);
  EXPECT_TRUE(one.too_few());
  one.gone(3, Gone::Surely);
  hear(Saying::Kind::Prepare, 7);
  EXPECT_FALSE(one.too_few());
}

// A rank that has heard the higher one's word first takes the lower one for lost, and leads. Then it hears the lower one's word.
TEST(Consensus, AllGoOnWhereTwoLoseEachOtherInWhateverOrderTheyHearOfIt) {
  for (unsigned seed = 0; seed < 5000; ++seed) {
    std::mt19937_64 random(seed);
    World w(3 + seed % 4);
    std::vector<int> order(static_cast<size_t>(w.size));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const int one = order[0], other = order[1];
    std::shuffle(order.begin(), order.end(), random);
    w.cut(one, other);
    for (const int r : order) {
      for (int moves = std::uniform_int_distribution<int>(0, 6)(random); moves > 0; --moves) w.move(random);
      w.contribute(r, 1);
    }
    w.run(random);
    check(w, "seed " + std::to_string(seed));
    for (int r = 0; r < w.size; ++r) ASSERT_TRUE(w.verdict(r)) << "seed " << seed << ", rank " << r;
    const RankSet &out = w.verdict(0)->out;  // nobody: the cut was known too late
    ASSERT_TRUE(out.count() == 0 || out == set_of(w.size, {one}) || out == set_of(w.size, {other})) << "seed " << seed;
  }
}

// Each rank calls as often as the others, where its calls fail because they are too few. Ways are cut, between two halves at once or one by one, and
// ranks end. Five and more ranks of which some reach each other and some do not may wait, in one of some 30'000 such worlds.
TEST(Consensus, WhateverWaysAreCutNobodyWaitsInVain) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    const bool at_once = pick(1) == 0;
    World w(2 + pick(at_once ? 4 : 2));
    std::vector<std::pair<int, int>> to_cut;
    const unsigned half = static_cast<unsigned>(pick((1 << w.size) - 1));
    for (int a = 0; a < w.size; ++a)
      for (int b = 0; b < a; ++b)
        if (at_once ? ((half >> a) ^ (half >> b)) & 1 : pick(3) == 0) to_cut.emplace_back(a, b);
    std::shuffle(to_cut.begin(), to_cut.end(), random);
    int to_die = pick(4) == 0 ? 1 + pick(1) : 0;
    std::vector<char> in_call(static_cast<size_t>(w.size));
    std::vector<int> calls(static_cast<size_t>(w.size), 1 + pick(2));  // still to be made
    const auto cut = [&] {
      for (bool more = !to_cut.empty(); more; more = at_once && !to_cut.empty()) {
        const auto [a, b] = to_cut.back();
        to_cut.pop_back();
        if (!w.dead[a] && !w.dead[b]) w.cut(a, b);
      }
    };
    const auto call = [&](int r) {
      if (w.dead[r] || in_call[r] || calls[r] == 0 || w.verdict(r)) return false;
      --calls[r];
      in_call[r] = 1;
      w.contribute(r, 1);
      return true;
    };
    const auto fail = [&](int r) {
      if (w.dead[r] || !in_call[r] || w.verdict(r) || !w.ranks[r].too_few()) return false;
      in_call[r] = 0;
      w.ranks[r].withdraw();
      return true;
    };
    for (bool busy = true; busy;) {
      const int what = pick(19), r = pick(w.size - 1);
      if (what <= 1) {
        cut();
      } else if (what == 2 && to_die > 0 && !w.dead[r]) {
        --to_die;
        w.kill(r, random);
      } else if (what <= 4) {
        call(r);
      } else if (what <= 8) {
        fail(r);
      } else if (!w.move(random)) {
        busy = !to_cut.empty();
        cut();
        for (int q = 0; q < w.size && !busy; ++q) busy = fail(q) || call(q) || w.move(random);
      }
    }
    check(w, "seed " + std::to_string(seed));
    for (int r = 0; r < w.size; ++r) {
      if (w.dead[r]) continue;
      ASSERT_TRUE(w.verdict(r) || !in_call[r]) << "seed " << seed << ", rank " << r << " of " << w.size << " waits for ever";
    }
  }
}

TEST(Consensus, ThoseThatHaveLeftWithoutAnAnswerMayGoOnElsewhereSoTheLastOneDoesNot) {
  World w(3);
  w.leave(0);
  w.leave(1);
  w.contribute(2, 1);
  w.drain();
  EXPECT_FALSE(w.verdict(2));
  EXPECT_TRUE(w.ranks[2].too_few());
}

TEST(Consensus, WhatACallThatFailedHasContributedDoesNotCountWhereNoOtherRankHasIt) {
  World w(3);
  w.contribute(1, 7);  // and waits for rank 0, which is stopped
  w.ranks[1].withdraw();
  w.contribute(2, 6, {0});
  w.drain();
  EXPECT_FALSE(w.verdict(2)) << "rank 1 leads, and its program has not called again";
  w.contribute(1, 5);
  w.drain();
  for (const int r : {1, 2}) EXPECT_EQ(w.verdict(r), (Verdict{4, set_of(3, {0})})) << r;
}

TEST(Consensus, TooFewAreEnoughAsSoonAsTheMissingOneIsKnownToHaveEnded) {
  World w(2);
  w.cut(0, 1);
  w.contribute(0, 1);
  w.drain();
  EXPECT_TRUE(w.ranks[0].too_few());
  w.ranks[0].gone(1, Gone::Surely);
  EXPECT_FALSE(w.ranks[0].too_few());
  EXPECT_TRUE(w.verdict(0));
}

TEST(Consensus, TooFewAreEnoughAsSoonAsTheMissingOneIsKnownToHaveLeftWhereTheVerdictWasAcceptedBefore) {
  Consensus one(1, 5, all_of(5));
  const auto says = [&](int from, Saying::Kind kind, uint64_t ballot, const std::vector<int> &ranks, uint64_t accepted = 0) {
    one.hear(from, {kind, ballot, accepted, 1, 1, false, set_of(5, ranks)});
  };
  const auto asks = [&] {  // by which ballot rank 1 asks rank 2
    uint64_t ballot = 0;
    for (const auto &[to, word] : one.take_words())
      if (to == 2 && word.kind == Saying::Kind::Prepare) ballot = word.ballot;
    return ballot;
  };
  one.contribute(1, RankSet(5), false);
  one.gone(3, Gone::Surely);
  says(0, Saying::Kind::Propose, 1, {3});
  one.gone(0, Gone::Surely);
  const uint64_t first = asks();
  ASSERT_NE(first, 0u);
  says(2, Saying::Kind::Suspect, 0, {0, 3, 4});
  says(2, Saying::Kind::Promise, first, {3}, 1);
  EXPECT_TRUE(one.too_few()) << "rank 4 may live, and have another verdict";
  one.gone(4, Gone::Left);
  const uint64_t second = asks();
  EXPECT_GT(second, first);
  says(2, Saying::Kind::Promise, second, {3}, 1);
  says(2, Saying::Kind::Accept, second, {});
  ASSERT_TRUE(one.verdict());
  EXPECT_EQ(one.verdict()->out, set_of(5, {3}));
}

TEST(Consensus, WhomTheOthersSuspectAndWhoHasLostAllOfThemDoesNotWaitForTheirVerdict) {
  World w(3);
  w.contribute(0, 1, {2});
  w.contribute(1, 1, {2});
  ASSERT_TRUE(w.deliver(0, 2)) << "who suspects it";
  w.cut(0, 2);
  w.cut(1, 2);
  w.drain();
  EXPECT_EQ(w.verdict(0)->out, set_of(3, {2}));
  w.contribute(2, 1);
  w.drain();
  EXPECT_FALSE(w.verdict(2));
  EXPECT_TRUE(w.ranks[2].too_few());
}

// Ranks end at any moment, leaders in the middle of what they say among them.
TEST(Consensus, EveryRankThatLivesGetsTheSameVerdictWhoeverEndsAtAnyMoment) {
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    World w(2 + pick(4));
    std::vector<int> to_call, to_die;
    for (int r = 0; r < w.size; ++r) {
      to_call.push_back(r);
      if (pick(2) == 0) to_die.push_back(r);
    }
    std::shuffle(to_call.begin(), to_call.end(), random);
    std::shuffle(to_die.begin(), to_die.end(), random);
    for (int steps = 0;; ++steps) {
      ASSERT_LT(steps, 100'000) << "seed " << seed;
      if (!to_die.empty() && pick(15) == 0) {
        w.kill(to_die.back(), random);
        to_die.pop_back();
      } else if (pick(20) == 0) {  // who has the answer may leave
        if (const int r = pick(w.size - 1); !w.dead[r] && !w.gone[r] && w.verdict(r)) w.leave(r);
      } else if (!to_call.empty() && pick(5) == 0) {
        if (const int r = to_call.back(); !w.dead[r]) w.contribute(r, random());
        to_call.pop_back();
      } else if (!w.move(random) && to_call.empty()) {
        break;  // who was to die lives on where all is over before
      }
    }
    check(w, "seed " + std::to_string(seed));
    for (int r = 0; r < w.size; ++r) {
      if (w.dead[r]) continue;
      ASSERT_TRUE(w.verdict(r)) << "seed " << seed << ", rank " << r << " waits for ever";
      for (int q = 0; q < w.size; ++q)
        ASSERT_TRUE(!w.verdict(r)->out.has(q) || w.dead[q] || w.gone[q]) << "seed " << seed << ": rank " << q << " lives";
    }
  }
}

// Ways are cut at any moment, and ranks end too. Some ranks may never get a verdict; no two get unlike ones.
TEST(Consensus, NoTwoRanksGetUnlikeVerdictsWhateverWaysAreCut) {
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    World w(2 + pick(5));
    std::vector<int> to_call;
    for (int r = 0; r < w.size; ++r) to_call.push_back(r);
    std::shuffle(to_call.begin(), to_call.end(), random);
    const int deaths = pick(1) ? pick(w.size / 2) : 0;
    int died = 0;
    for (int steps = 0;; ++steps) {
      ASSERT_LT(steps, 100'000) << "seed " << seed;
      if (pick(12) == 0) {
        const int a = pick(w.size - 1), b = pick(w.size - 1);
        if (a != b && !w.dead[a] && !w.dead[b]) w.cut(a, b);
      } else if (died < deaths && pick(30) == 0) {
        if (const int r = pick(w.size - 1); !w.dead[r]) {
          w.kill(r, random);
          ++died;
        }
      } else if (!to_call.empty() && pick(5) == 0) {
        const int r = to_call.back();
        std::vector<int> suspects;
        if (const int q = pick(w.size - 1); pick(5) == 0 && q != r) suspects.push_back(q);
        if (!w.dead[r]) w.contribute(r, random(), suspects);
        to_call.pop_back();
      } else if (pick(40) == 0) {  // a program whose call has failed calls again
        if (const int r = pick(w.size - 1); !w.dead[r] && w.ranks[r].too_few()) {
          w.ranks[r].withdraw();
          w.contribute(r, w.flags[r]);
        }
      } else if (!w.move(random) && to_call.empty()) {
        break;
      }
    }
    check(w, "seed " + std::to_string(seed));
  }
}

// Else each of many ranks would tell all others whenever one of them leaves.
TEST(Consensus, TheVerdictIsRepeatedWhereWhoToldItIsLostAndByNobodyWhereRanksLeaveThatWereToldByTheLeader) {
  World w(5);
  for (int r = 0; r < w.size; ++r) w.contribute(r, 1);
  w.drain();
  Consensus &one = w.ranks[1], &two = w.ranks[2];
  ASSERT_TRUE(one.verdict() && two.verdict());
  for (const int q : {0, 2, 3, 4}) one.gone(q, Gone::Left);
  EXPECT_TRUE(one.take_words().empty());
  for (const int q : {1, 3, 4}) two.gone(q, Gone::Surely);
  EXPECT_TRUE(two.take_words().empty());
  two.gone(0, Gone::Perhaps);
  const auto said = two.take_words();
  EXPECT_EQ(said.size(), 4u);
  for (const auto &[to, word] : said) EXPECT_EQ(word.kind, Saying::Kind::Decide);
}

// Each program names some of the ranks that are to be left out, and those name others. All messages arrive: nobody waits for ever.
TEST(Consensus, WhicheverOfTheSameRanksTheProgramsNameEachRankHearsTheVerdictOrThatTooFewAreLeft) {
  for (uint64_t seed = 1; seed <= 20'000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    World w(2 + pick(6));
    std::vector<int> to_call(w.size);
    std::iota(to_call.begin(), to_call.end(), 0);
    std::shuffle(to_call.begin(), to_call.end(), random);
    const std::vector<int> named(to_call.begin(), to_call.begin() + pick(w.size - 1));
    std::shuffle(to_call.begin(), to_call.end(), random);
    for (const int r : to_call) {
      const bool is_named = std::find(named.begin(), named.end(), r) != named.end();
      std::vector<int> suspects;
      for (int q = 0; q < w.size; ++q)
        if (q != r && pick(1) && (std::find(named.begin(), named.end(), q) != named.end()) != is_named)
          suspects.push_back(q);
      w.contribute(r, random(), suspects);
      for (int moves = pick(10); moves > 0 && w.move(random); --moves) {}
    }
    w.run(random);
    check(w, "seed " + std::to_string(seed));
    for (int r = 0; r < w.size; ++r)
      ASSERT_TRUE(w.verdict(r) || w.ranks[r].too_few()) << "seed " << seed << ", rank " << r << " waits for ever";
  }
}

// All of many ranks have lost one: each of them tells the leader, and not all others, also where the leader is the last to lose it.
TEST(Consensus, OfManyRanksCostsSomeEightWordsARankAlsoWhereAllHaveLostOne) {
  constexpr int kRanks = 64;
  for (const auto &[lost, late] : std::vector<std::pair<int, int>>{{0, -1}, {1, -1}, {32, -1}, {63, -1}, {32, 0}, {0, 1}}) {
    World w(kRanks);
    for (int r = 0; r < kRanks; ++r)
      if (r != lost && r != late) w.ranks[r].gone(lost, Gone::Surely);
    size_t words = 0;
    const auto say = [&](int from) {
      auto said = w.ranks[from].take_words();
      words += said.size();
      for (auto &[to, word] : said)
        if (to != lost) w.ways[from][to].words.push_back(std::move(word));
    };
    for (int r = 0; r < kRanks; ++r)
      if (r != lost) {
        w.ranks[r].contribute(1, RankSet(kRanks), false);
        say(r);
      }
    const auto deliver_all = [&] {
      for (bool moved = true; std::exchange(moved, false);)
        for (int from = 0; from < kRanks; ++from)
          for (int to = 0; to < kRanks; ++to)
            for (auto &queue = w.ways[from][to].words; !queue.empty() && to != lost; moved = true) {
              const Saying word = std::move(queue.front());
              queue.pop_front();
              w.ranks[to].hear(from, word);
              say(to);
            }
    };
    deliver_all();
    if (late >= 0) {
      w.ranks[late].gone(lost, Gone::Surely);
      say(late);
      deliver_all();
    }
    for (int r = 0; r < kRanks; ++r)
      if (r != lost) { EXPECT_EQ(w.verdict(r), (Verdict{1, set_of(kRanks, {lost})})) << r; }
    EXPECT_LE(words, 8u * kRanks) << "rank " << lost << " is lost, at last to rank " << late;
  }
}

// A network falls into two parts, for good.
TEST(Consensus, ThePartWithMoreThanHalfOfTheRanksGoesOnAndTheOtherDoesNot) {
  for (uint64_t seed = 1; seed <= 5'000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
    World w(3 + pick(4));
    std::vector<char> left(w.size);
    int on_left = 0;
    for (int r = 0; r < w.size; ++r) on_left += left[r] = static_cast<char>(pick(1));
    for (int r = 0; r < w.size; ++r)
      if (pick(1)) w.contribute(r, random());
    for (int moves = pick(30); moves > 0 && w.move(random); --moves) {}
    for (int a = 0; a < w.size; ++a)
      for (int b = 0; b < a; ++b)
        if (left[a] != left[b]) w.cut(a, b);
    for (int r = 0; r < w.size; ++r)
      if (!w.called[r]) w.contribute(r, random());
    w.run(random);
    check(w, "seed " + std::to_string(seed));
    for (int r = 0; r < w.size; ++r) {
      const int with = left[r] ? on_left : w.size - on_left;
      // A rank of the smaller part may have heard the verdict before the cut.
      ASSERT_TRUE(w.verdict(r) || 2 * with <= w.size) << "seed " << seed << ", rank " << r << " is in the larger part";
      ASSERT_TRUE(w.verdict(r) || w.ranks[r].too_few()) << "seed " << seed << ", rank " << r << " waits in vain";
    }
  }
}

}  // namespace
}  // namespace isthmus::rank
