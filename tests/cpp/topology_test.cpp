#include "topology/topology.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"

namespace isthmus::topology {
namespace {

std::vector<RankInfo> ranks_of(const std::string &islands, const std::string &hosts) {
  std::vector<RankInfo> ranks;
  for (size_t i = 0; i < islands.size(); ++i) {
    RankInfo r;
    r.island = islands[i] == '-' ? "" : std::string(1, islands[i]);
    r.host = std::string("id-") + hosts[i];
    r.hostname = std::string("node-") + hosts[i];
    ranks.push_back(r);
  }
  return ranks;
}

TEST(Topology, WhereTcpPartsIslandsGroupsAreIslandTimesHostOrderedByLowestRank) {
  const Topology t = make_topology(ranks_of("baab", "xxyx"), Bridge::Tcp);
  ASSERT_EQ(t.islands.size(), 3u);
  EXPECT_EQ(t.islands[0].ranks, (std::vector<int>{0, 3}));
  EXPECT_EQ(t.islands[0].label, "b");
  EXPECT_EQ(t.islands[1].ranks, (std::vector<int>{1}));
  EXPECT_EQ(t.islands[2].ranks, (std::vector<int>{2}));
  EXPECT_EQ(t.island_of, (std::vector<int>{0, 1, 2, 0}));
  EXPECT_EQ(t.index_of, (std::vector<int>{0, 0, 0, 1}));
  EXPECT_EQ(t.weights, (std::vector<double>{1, 1, 1}));
}

TEST(Topology, RanksOfOneHostShareMemoryWhateverElseTheCommunicatorHolds) {
  auto ranks = ranks_of("baab", "xxyx");
  Topology t = make_topology(ranks, Bridge::Auto);
  ASSERT_EQ(t.islands.size(), 2u) << "labels part nothing on several hosts";
  EXPECT_EQ(t.islands[0].ranks, (std::vector<int>{0, 1, 3}));
  EXPECT_EQ(t.islands[0].label, "") << "of several labels";
  EXPECT_EQ(t.islands[1].label, "a");
  EXPECT_EQ(t.memory_of, (std::vector<int>{0, 0, 2, 0}));
  EXPECT_FALSE(one_memory(t));
  EXPECT_EQ(make_topology(ranks, Bridge::Tcp).memory_of, (std::vector<int>{0, 1, 2, 0}));
  for (const size_t r : {0, 3}) ranks[r].ccl = "nccl";
  t = make_topology(ranks, Bridge::Auto);
  EXPECT_EQ(t.islands.size(), 3u) << "but a library serves ranks of one label";
  EXPECT_EQ(t.memory_of, (std::vector<int>{0, 0, 2, 0}));
  EXPECT_NE(t.digest, make_topology(ranks, Bridge::Tcp).digest);
}

TEST(Topology, OneHostIsFlatUnlessTcpIsForcedBetweenIslands) {
  EXPECT_TRUE(make_topology(ranks_of("----", "xxxx"), Bridge::Auto).flat);
  EXPECT_TRUE(make_topology(ranks_of("aabb", "xxxx"), Bridge::Auto).flat);
  EXPECT_TRUE(make_topology(ranks_of("aabb", "xxxx"), Bridge::Shm).flat);
  EXPECT_FALSE(make_topology(ranks_of("aabb", "xxxx"), Bridge::Tcp).flat);
  EXPECT_TRUE(make_topology(ranks_of("aaaa", "xxxx"), Bridge::Tcp).flat) << "one island on one host has no bridge";
  EXPECT_FALSE(make_topology(ranks_of("aaaa", "xxyy"), Bridge::Auto).flat);
  EXPECT_FALSE(make_topology(ranks_of("aabb", "xxyy"), Bridge::Auto).flat);
}

// One letter a rank: the maker of its device, and h for none; without labels.
std::vector<RankInfo> ranks_made_by(const std::string &makers, const std::string &hosts) {
  std::vector<RankInfo> ranks = ranks_of(std::string(makers.size(), '-'), hosts);
  for (size_t i = 0; i < makers.size(); ++i)
    if (makers[i] != 'h') ranks[i].maker = makers[i], ranks[i].device = "device:0";
  return ranks;
}

TEST(Topology, WithoutLabelsTcpPartsTheMakersOfDevicesAndTheHost) {
  const Topology t = make_topology(ranks_made_by("nahn", "xxxx"), Bridge::Tcp);
  EXPECT_FALSE(t.flat);
  EXPECT_FALSE(one_memory(t));
  EXPECT_EQ(t.island_of, (std::vector<int>{0, 1, 2, 0}));
  EXPECT_TRUE(make_topology(ranks_made_by("nnn", "xxx"), Bridge::Tcp).flat) << "one island has no bridge";
  EXPECT_TRUE(make_topology(ranks_made_by("hh", "xx"), Bridge::Tcp).flat);
  for (const Bridge bridge : {Bridge::Auto, Bridge::Shm})
    EXPECT_TRUE(make_topology(ranks_made_by("nahn", "xxxx"), bridge).flat);
  EXPECT_EQ(make_topology(ranks_made_by("nhnh", "xxyy"), Bridge::Auto).islands.size(), 2u)
      << "what shares memory on a host stays together where nothing parts it";
}

TEST(Topology, ALabelGoesBeforeTheMaker) {
  auto ranks = ranks_made_by("nah", "xxx");
  for (RankInfo &r : ranks) r.island.assign(1, 'a');
  EXPECT_TRUE(make_topology(ranks, Bridge::Tcp).flat);
  ranks[2].island.clear();
  EXPECT_EQ(make_topology(ranks, Bridge::Tcp).island_of, (std::vector<int>{0, 0, 1}));
}

TEST(Topology, LibrariesThatCannotServeLeaveMakersParted) {
  auto ranks = ranks_made_by("naan", "xxxx");
  for (RankInfo &r : ranks) r.ccl = r.maker + "ccl";
  const Topology without = dissolve(make_topology(ranks, Bridge::Tcp), {});
  EXPECT_FALSE(without.flat);
  EXPECT_EQ(without.island_of, (std::vector<int>{0, 1, 1, 0}));
}

TEST(Topology, RatesAreDeclaredByMakerWhereThereIsNoLabel) {
  Topology t = make_topology(ranks_made_by("nah", "xxx"), Bridge::Tcp);
  apply_rates(t, "n:4,host:2");
  EXPECT_EQ(t.weights, (std::vector<double>{4, 1, 2}));
  try {
    apply_rates(t, "n:4,z:1");
    FAIL() << "no error";
  } catch (const Error &e) {
    EXPECT_NE(e.text().find("no island is named 'z'; there is 'n', 'a', 'host'"), std::string::npos) << e.text();
  }
  t = make_topology(ranks_made_by("nah", "xxx"), Bridge::Auto);
  apply_rates(t, "n:4,a:3,host:2");
  EXPECT_EQ(t.weights, (std::vector<double>{2})) << "a group of several islands is as fast as the slowest of them";
}

TEST(Topology, ShmBridgeBetweenHostsIsAnErrorThatNamesThem) {
  try {
    make_topology(ranks_of("aab", "xxy"), Bridge::Shm);
    FAIL() << "no error";
  } catch (const Error &e) {
    EXPECT_EQ(e.code(), Code::Config);
    for (const char *part : {"island 'a'", "island 'b'", "node-x", "node-y", "rank 0", "rank 2", "ISTHMUS_BRIDGE"})
      EXPECT_NE(e.text().find(part), std::string::npos) << e.text();
  }
  EXPECT_NO_THROW(make_topology(ranks_of("aaaa", "xxyy"), Bridge::Shm)) << "one island has no bridge";
  EXPECT_THROW(make_topology({}, Bridge::Auto), Error);
}

TEST(Topology, DigestTellsWhatPlansDependOnAndNothingElse) {
  const Topology a = make_topology(ranks_of("aabb", "xxxx"), Bridge::Tcp);
  EXPECT_EQ(a.digest, make_topology(ranks_of("ccdd", "zzzz"), Bridge::Tcp).digest) << "names do not matter";
  EXPECT_NE(a.digest, make_topology(ranks_of("abab", "xxxx"), Bridge::Tcp).digest);
  EXPECT_NE(a.digest, make_topology(ranks_of("aabb", "xxxx"), Bridge::Auto).digest);
  Topology weighted = a;
  weighted.weights[1] = 2;
  EXPECT_NE(digest_of(weighted), a.digest);
}

Rates rates_with(double memory, double tcp, double out = 0, double in = 0) {
  Rates r;
  r[Rate::Memory] = memory;
  r[Rate::Tcp] = tcp;
  r[Rate::DeviceToHost] = out;
  r[Rate::HostToDevice] = in;
  return r;
}

TEST(Topology, WeightsAreTheSlowestRanksRatesTimesTheSizeRelativeToTheSlowestGroup) {
  auto ranks = ranks_of("abbc", "xxxx");
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].rates = rates_with(9e9, 1e9 * static_cast<double>(r + 1));
  Topology t = make_topology(ranks, Bridge::Tcp);
  const uint64_t before = t.digest;
  apply_profiles(t);
  EXPECT_TRUE(t.measured);
  EXPECT_EQ(t.weights, (std::vector<double>{1, 4, 4})) << "2 and 3 carry as 2 and 2";
  EXPECT_NE(t.digest, before) << "plans depend on the weights";
  EXPECT_EQ(t.digest, digest_of(t));
  Topology by_memory = make_topology(ranks, Bridge::Auto);
  apply_profiles(by_memory);
  EXPECT_EQ(by_memory.weights, (std::vector<double>{1, 2, 1})) << "one host: the link is shared memory";
  EXPECT_EQ(slowest_bridge(t), 1e9);
  EXPECT_EQ(slowest_bridge(by_memory), 9e9);
  ranks[3].rates = {};
  EXPECT_EQ(slowest_bridge(make_topology(ranks, Bridge::Tcp)), 0) << "nobody knows it while a rank has no rate";
}

TEST(Topology, ADevicesRankCarriesWhatTheSlowestPartOfItsWayDoes) {
  auto ranks = ranks_of("ab", "xy");
  for (auto &r : ranks) r.device = "cuda:0";
  ranks[0].rates = rates_with(50, 40, 10, 30);
  ranks[1].rates = rates_with(50, 20, 30, 25);
  Topology t = make_topology(ranks, Bridge::Auto);
  EXPECT_EQ(bridge_rate(t, 0), 10);
  EXPECT_EQ(bridge_rate(t, 1), 20);
  apply_profiles(t);
  EXPECT_EQ(t.weights, (std::vector<double>{1, 2}));
  ranks[1].rates = rates_with(50, 20);
  t = make_topology(ranks, Bridge::Auto);
  EXPECT_EQ(unmeasured_rank(t), 1) << "the profile has no such device";
}

TEST(Topology, ProfilesThatNotAllRanksHaveChangeNothing) {
  auto ranks = ranks_of("aab", "xxx");
  for (size_t r = 0; r < 2; ++r) ranks[r].rates = rates_with(9, 9);
  Topology t = make_topology(ranks, Bridge::Tcp);
  const uint64_t before = t.digest;
  apply_profiles(t);
  EXPECT_FALSE(t.measured);
  EXPECT_EQ(unmeasured_rank(t), 2);
  EXPECT_EQ(t.weights, (std::vector<double>{1, 1}));
  EXPECT_EQ(t.digest, before);
}

TEST(Topology, TheLeaderExchangeEndsAtTheLeastThatTheRanksProfilesSayOfTheLinkBetweenTheIslands) {
  auto ranks = ranks_of("aab", "xxx");
  ranks[0].leader_bytes = {.memory = 4096, .tcp = 65536};
  ranks[1].leader_bytes = {.memory = -1, .tcp = 16384};
  ranks[2].leader_bytes = {.memory = 0, .tcp = kMostLeaderBytes};
  EXPECT_EQ(measured_leader_bytes(make_topology(ranks, Bridge::Tcp)), 16384);
  EXPECT_EQ(measured_leader_bytes(make_topology(ranks, Bridge::Auto)), -1) << "rank 1 does not know it over memory";
  ranks[1].leader_bytes.memory = 2048;
  EXPECT_EQ(measured_leader_bytes(make_topology(ranks, Bridge::Auto)), 0) << "never is a number as well";
  std::swap(ranks[0].leader_bytes, ranks[2].leader_bytes);
  EXPECT_EQ(measured_leader_bytes(make_topology(ranks, Bridge::Tcp)), 16384) << "whoever says it";
}

// Each rank has its own copy of what was exchanged, and must come to the same bits.
TEST(Topology, TheLastBitOfASlowestRanksRateIsInTheDigest) {
  auto ranks = ranks_of("abcabcabca", "xxyyzzxyzx");
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].rates = rates_with(0, 1e9 / (3.0 + static_cast<double>(r)));
  Topology first = make_topology(ranks, Bridge::Auto);
  apply_profiles(first);
  ranks[7].rates = rates_with(0, std::nextafter(1e9 / 10.0, 0.0));  // the slowest on y
  Topology other = make_topology(ranks, Bridge::Auto);
  apply_profiles(other);
  EXPECT_NE(other.weights, first.weights);
  EXPECT_NE(other.digest, first.digest);
}

TEST(Topology, GroupsWithoutTheirLibraryAreWeighedAnew) {
  auto ranks = ranks_of("aab", "xyx");
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].rates = rates_with(9, 1.0 + static_cast<double>(r));
  ranks[0].ccl = ranks[1].ccl = "nccl";
  Topology t = make_topology(ranks, Bridge::Auto);
  apply_profiles(t);
  EXPECT_EQ(t.weights, (std::vector<double>{1, 1.5})) << "two ranks, 1 and 2, against one of 3";
  const Topology plain = dissolve(t, {});
  EXPECT_EQ(plain.weights, (std::vector<double>{1, 1})) << "two ranks, 1 and 3, on one host, and one of 2 on the other";
  EXPECT_EQ(plain.digest, digest_of(plain));
  apply_rates(t, "a:4,b:1");
  EXPECT_EQ(dissolve(t, {}).weights, (std::vector<double>{1, 4})) << "declared rates go before measured ones";
}

TEST(Topology, TheVersionsOfAGroupsLibraryAreToldWhereTheyDiffer) {
  auto ranks = ranks_of("aabaa", "xxxxx");
  for (auto &r : ranks) r.ccl = "nccl", r.ccl_version = "2.29.3";
  ranks[2].ccl_version = "2.20.5";  // of another island
  EXPECT_EQ(unequal_versions(make_topology(ranks, Bridge::Auto), make_topology(ranks, Bridge::Auto).islands[0]), "");
  ranks[3].ccl_version = ranks[4].ccl_version = "2.27.5";
  const Topology t = make_topology(ranks, Bridge::Auto);
  EXPECT_EQ(unequal_versions(t, t.islands[0]), "rank 0 has nccl 2.29.3, rank 3 has nccl 2.27.5");
  EXPECT_EQ(unequal_versions(t, t.islands[1]), "");
}

TEST(Topology, JsonNamesHostsIslandsGroupsAndRanks) {
  const auto j = nlohmann::json::parse(to_json(make_topology(ranks_of("aab", "xyx"), Bridge::Auto)));
  EXPECT_EQ(j["world"], 3);
  EXPECT_EQ(j["flat"], false);
  EXPECT_EQ(j["hosts"].size(), 2u);
  EXPECT_EQ(j["hosts"][0]["hostname"], "node-x");
  EXPECT_EQ(j["hosts"][0]["ranks"], nlohmann::json({0, 2}));
  EXPECT_EQ(j["islands"].size(), 2u);
  EXPECT_EQ(j["islands"][0]["label"], "a");
  EXPECT_EQ(j["islands"][0]["hosts"], nlohmann::json({"node-x", "node-y"}));
  EXPECT_EQ(j["groups"].size(), 2u);
  EXPECT_EQ(j["groups"][0]["name"], "") << "of several islands";
  EXPECT_EQ(j["groups"][1]["name"], "a");
  EXPECT_EQ(j["ranks"][2]["island"], "b");
  auto ranks = ranks_made_by("nah", "xxx");
  for (size_t r = 0; r < ranks.size(); ++r) ranks[r].address = formatted("10.0.0.{}", r);
  const auto unnamed = nlohmann::json::parse(to_json(make_topology(ranks, Bridge::Auto)));
  EXPECT_EQ(unnamed["islands"].size(), 3u) << "islands without labels are islands, too";
  EXPECT_EQ(unnamed["islands"][2]["name"], "host");
  EXPECT_EQ(unnamed["groups"][0]["name"], "") << "of several islands";
  EXPECT_EQ(unnamed["ranks"][0]["maker"], unnamed["islands"][0]["name"]);
  EXPECT_EQ(unnamed["ranks"][2]["maker"], "host");
  EXPECT_EQ(unnamed["ranks"][1]["address"], "10.0.0.1");
}

}  // namespace
}  // namespace isthmus::topology
