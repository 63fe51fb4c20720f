// The plans of the large collectives against the least time that any algorithm needs over the bridges between islands: the cost model's walk
// (predict.cpp), for rates that nobody has chosen. bench/bridge.py has the same bounds and asks the clock as well; docs/howto/bench.md has where
// they come from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "plan/plan.hpp"
#include "prove_case.hpp"

namespace isthmus::plan {
namespace {

constexpr double kMost = 1.03;  // of the bound
constexpr uint64_t kBytes = 64 << 20;

// Islands with so many ranks each, and bridges of so many bytes a second. A library serves those of several ranks that `served` has.
struct Fleet {
  std::vector<int> ranks;
  std::vector<double> bridges;
  std::vector<bool> served = {};
  size_t islands() const { return ranks.size(); }
  double world() const { return std::accumulate(ranks.begin(), ranks.end(), 0.0); }
  double sum() const { return std::accumulate(bridges.begin(), bridges.end(), 0.0); }
  std::string text() const {
    std::string out;
    for (size_t i = 0; i < islands(); ++i)
      out += (i ? ":" : "") + std::to_string(ranks[i]) + (i < served.size() && served[i] ? " served at " : " at ") +
             std::to_string(bridges[i] / 1e6);
    return out;
  }
};

// The least seconds in which n bytes (of the larger buffer of a rank) can be over the bridges, by whatever algorithm. Of an island with the
// share s of all ranks:
//   all_reduce      each bridge carries n out and n in; to bring k islands' numbers together and back takes 2 (k-1) n in all
//   all_gather      each bridge carries s n out at least, and (1-s) n in, which k islands' bridges have to bring: (k-1) n in all
//   reduce_scatter  the same, with out and in exchanged
//   all_to_all      each of its ranks gives and gets (1-s) n
double bound(Collective c, double n, const Fleet &f) {
  const auto k = static_cast<double>(f.islands());
  double most = 0;
  for (size_t i = 0; i < f.islands(); ++i) {
    const double share = f.ranks[i] / f.world();
    double bytes = n;
    if (c == Collective::AllGather || c == Collective::ReduceScatter) bytes = n * std::max(share, 1 - share);
    if (c == Collective::AllToAll) bytes = f.ranks[i] * (1 - share) * n;
    most = std::max(most, bytes / f.bridges[i]);
  }
  if (c == Collective::AllReduce) most = std::max(most, 2 * (k - 1) * n / f.sum());
  if (c == Collective::AllGather || c == Collective::ReduceScatter) most = std::max(most, (k - 1) * n / f.sum());
  return most;
}

// The same for a reduce_scatter whose sums have one order. So every byte of a result is summed in one island, to which all others give what they have of
// it, the island too whose block it is; and from there it goes to that island. Let x of the sums for an island be made there: it gets (k-1) x s for them
// and (1-x) s of results, and sends 1 - x s. What others make of its sums costs them k-1 each way in. No x is better than the largest for which an
// island has room.
double bound_of_sums(double n, const Fleet &f) {
  const auto others = static_cast<double>(f.islands() - 1);
  const auto fits = [&](double seconds) {
    double room = 0, needed = 0;
    for (size_t i = 0; i < f.islands(); ++i) {
      const double share = f.ranks[i] / f.world(), carries = f.bridges[i] * seconds / n;
      const double x = f.islands() == 2 ? 1 : std::min(1.0, (carries / share - 1) / (others - 1));
      if (x < 0 || 1 - x * share > carries) return false;
      if (x < 1) needed += (1 - x) * share * others;
      else room += carries - others * share;
    }
    return room >= needed;
  };
  double low = bound(Collective::ReduceScatter, n, f), high = 100 * low;
  if (fits(low * 1.000001)) return low;
  while (high > 1.000001 * low) (fits((low + high) / 2) ? high : low) = (low + high) / 2;
  return high;
}

// Hosts that are otherwise fast; an island on each, and a bridge of each rank that is its part of the island's.
topology::Topology world_with(const Fleet &f) {
  std::vector<topology::RankInfo> ranks;
  for (size_t i = 0; i < f.islands(); ++i)
    for (int r = 0; r < f.ranks[i]; ++r) {
      topology::RankInfo info;
      info.island = info.host = info.hostname = std::string(1, static_cast<char>('a' + i));
      info.rates.values.fill(1e13);
      info.rates[topology::Rate::Tcp] = f.bridges[i] / f.ranks[i];
      if (i < f.served.size() && f.served[i]) {
        info.ccl = "library";
        info.ccl_table = prover::whole_table();
      }
      ranks.push_back(info);
    }
  auto t = topology::make_topology(ranks, topology::Bridge::Tcp);
  topology::apply_profiles(t);
  return t;
}

// Of the slowest rank.
double walked(Collective c, const topology::Topology &t) {
  Request r;
  r.collective = c;
  // A request has the bytes of a block where a collective has blocks.
  r.bytes = c == Collective::AllReduce ? kBytes : kBytes / 4 / t.ranks.size() * 4;
  double seconds = 0;
  for (int rank = 0; rank < t.size(); ++rank) {
    const Prediction p = predict(*plan_collective(t, rank, r), t);
    EXPECT_EQ(p.unknown, "");
    seconds = std::max(seconds, p.seconds);
  }
  return seconds;
}

// Four to eight islands, rates from 1 to 16, most of them unlike.
Fleet drawn(std::mt19937 &random, int most_ranks) {
  Fleet f;
  std::uniform_real_distribution<double> power(0, 4);
  const int islands = std::uniform_int_distribution<int>(4, 8)(random);
  for (int i = 0; i < islands; ++i) {
    f.ranks.push_back(std::uniform_int_distribution<int>(1, most_ranks)(random));
    f.bridges.push_back(50e6 * std::exp2(power(random)));
  }
  return f;
}

// The same, where libraries serve three islands of four.
Fleet drawn_with_libraries(std::mt19937 &random, int most_ranks) {
  Fleet f = drawn(random, most_ranks);
  for (size_t i = 0; i < f.islands(); ++i) f.served.push_back(std::uniform_int_distribution<int>(0, 3)(random) > 0);
  return f;
}

class BridgeTime : public testing::TestWithParam<Collective> {
 protected:
  double worst = 0;  // of what the test allows, for the report
  void TearDown() override { RecordProperty("worst", std::to_string(worst)); }
  void expect_near_the_bound(const Fleet &f) {
    constexpr auto kAll = static_cast<double>(kBytes);
    const double least = GetParam() == Collective::ReduceScatter ? bound_of_sums(kAll, f) : bound(GetParam(), kAll, f);
    const double seconds = walked(GetParam(), world_with(f));
    worst = std::max(worst, seconds / least);
    EXPECT_GE(seconds, 0.999 * least) << f.text() << ": then the bound is none";
    EXPECT_LE(seconds, kMost * least) << f.text();
  }
};

TEST_P(BridgeTime, IsNearTheLeastForRatesThatNobodyHasChosen) {
  std::mt19937 random(20);
  for (int i = 0; i < 300; ++i) expect_near_the_bound(drawn(random, 1));
}

TEST_P(BridgeTime, IsNearTheLeastForIslandsOfSeveralRanksAlsoWhereTheyAreUnlike) {
  std::mt19937 random(21);
  for (int i = 0; i < 300; ++i) expect_near_the_bound(drawn(random, 3));
}

TEST_P(BridgeTime, IsNearTheLeastOfIslandsOfVeryUnlikeNumbersOfRanks) {
  expect_near_the_bound({{4, 1}, {100e6, 100e6}});
  expect_near_the_bound({{4, 1}, {400e6, 50e6}});
  expect_near_the_bound({{3, 2}, {100e6, 100e6}});
  expect_near_the_bound({{8, 2, 1}, {100e6, 100e6, 100e6}});
  expect_near_the_bound({{8, 2, 1}, {50e6, 200e6, 400e6}});
  expect_near_the_bound({{8, 2, 1}, {800e6, 200e6, 100e6}});
}

TEST_P(BridgeTime, IsNearTheLeastForIslandsWithLibrariesAlsoWhereTheyAreUnlike) {
  std::mt19937 random(22);
  for (int i = 0; i < 300; ++i) expect_near_the_bound(drawn_with_libraries(random, 4));
}

TEST_P(BridgeTime, IsNearTheLeastOfIslandsWithLibrariesOfVeryUnlikeNumbersOfRanks) {
  const std::vector<bool> all{true, true, true};
  expect_near_the_bound({{4, 2, 1}, {100e6, 100e6, 100e6}, all});
  expect_near_the_bound({{8, 2, 1}, {100e6, 100e6, 100e6}, all});
  expect_near_the_bound({{8, 2, 1}, {50e6, 200e6, 400e6}, all});
  expect_near_the_bound({{8, 2, 1}, {800e6, 200e6, 100e6}, all});
  expect_near_the_bound({{3, 2}, {100e6, 100e6}, all});
  expect_near_the_bound({{8, 3}, {400e6, 50e6}, all});
}

TEST_P(BridgeTime, IsNearTheLeastOfTheBenchmarksFleets) {
  expect_near_the_bound({{1, 1, 1}, {400e6, 200e6, 50e6}});
  expect_near_the_bound({{1, 1, 1, 1}, {200e6, 100e6, 100e6, 50e6}});
  expect_near_the_bound({{1, 1, 1}, {75e6, 50e6, 50e6}});
  expect_near_the_bound({{2, 2}, {100e6, 100e6}});  // two hosts with two ranks each
}

INSTANTIATE_TEST_SUITE_P(, BridgeTime,
                         testing::Values(Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather,
                                         Collective::AllToAll),
                         [](const auto &p) { return std::string(collective_name(p.param)); });

}  // namespace
}  // namespace isthmus::plan
