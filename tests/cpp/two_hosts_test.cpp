// Islands of a vendor's library whose ranks stand on two hosts, alone and beside ranks of the host.
// The hosts are those of second_host.hpp.
#include "fleet.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "second_host.hpp"

// Under ThreadSanitizer, whose exits take a second each otherwise.
extern "C" __attribute__((visibility("default"))) const char *__tsan_default_options();
extern "C" const char *__tsan_default_options() { return "atexit_sleep_ms=20"; }

namespace isthmus_test {
namespace {

using Json = nlohmann::json;

// ---- the shapes -------------------------------------------------------------------------------------------------------------------

struct Shape {
  const char *name, *ranks;  // a word a rank: A is of the island, b is of the host; the number of the host it stands on
};
constexpr Shape kShapes[] = {
    {"OneRankOnEach", "A0 A1"},
    {"OneRankOnEachAndTheHost", "A0 A1 b1"},
    {"TwoRanksOnEachInterleavedWithTheHost", "A0 A1 b0 A0 b1 A1"},
};

// The shape as a fleet whose island is of `vendor`, and where its ranks stand.
struct Fleet {
  std::string text;
  std::vector<int> hosts;
};
Fleet fleet_of(const Shape &shape, const Vendor &vendor) {
  Fleet fleet;
  std::istringstream words(shape.ranks);
  for (std::string word; words >> word;) {
    if (!fleet.text.empty()) fleet.text += ',';
    fleet.text += word[0] == 'A' ? vendor.name : "cpu";
    fleet.text += ":1";
    fleet.hosts.push_back(word[1] - '0');
  }
  return fleet;
}

// ---- what Isthmus says of it ------------------------------------------------------------------------------------------------------

Json topology_of(const FleetRank &r) {
  char *json = nullptr;
  FLEET_MUST(r, isthmus_comm_topology(r.comm, &json) == ISTHMUS_OK);
  Json topology = Json::parse(json);
  isthmus_free(json);
  return topology;
}

// Two hosts, one island of the vendor's ranks, which its library serves, and TCP between the hosts.
void expect_two_hosts(const FleetRank &r, const std::vector<FleetRank> &ranks, const Vendor &vendor) {
  using Ranks = std::vector<int>;
  std::map<int, Ranks> on;
  Ranks island;
  for (const FleetRank &q : ranks) {
    on[q.host].push_back(q.rank);
    if (q.vendor) island.push_back(q.rank);
  }
  const Json topology = topology_of(r);
  SCOPED_TRACE(topology.dump(1));
  std::set<Ranks> hosts;
  for (const Json &host : topology.at("hosts")) hosts.insert(host.at("ranks").get<Ranks>());
  EXPECT_EQ(topology.at("hosts").size(), 2u);
  EXPECT_EQ(hosts, (std::set<Ranks>{on.at(0), on.at(1)}));

  int islands = 0, served = 0;
  for (const Json &i : topology.at("islands")) {
    if (i.at("name").get<std::string>() != vendor.name) continue;
    ++islands;
    EXPECT_EQ(i.at("ranks").get<Ranks>(), island);
  }
  for (const Json &group : topology.at("groups")) {
    if (group.at("ccl").get<std::string>().empty()) continue;
    ++served;
    EXPECT_EQ(group.at("ccl").get<std::string>(), vendor.family);
    EXPECT_EQ(group.at("ranks").get<Ranks>(), island);
  }
  EXPECT_EQ(islands, 1);
  EXPECT_EQ(served, 1);

  for (const Json &link : topology.at("links")) {
    const FleetRank &q = ranks.at(link.at("to").get<size_t>());
    if (q.host != r.host) {
      EXPECT_EQ(link.at("kind").get<std::string>(), "tcp") << "to rank " << q.rank;
    } else if (q.rank != r.rank && q.island == r.island) {
      EXPECT_EQ(link.at("kind").get<std::string>(), "memory") << "to rank " << q.rank;
    }
  }
}

// What Isthmus has carried, both ways, between this rank's process and that of its island's ranks on the other host.
uint64_t carried(const FleetRank &r, const std::vector<FleetRank> &ranks) {
  uint64_t bytes = 0;
  const Json topology = topology_of(r);
  for (const Json &link : topology.at("links")) {
    const FleetRank &q = ranks.at(link.at("to").get<size_t>());
    if (q.host != r.host && q.island == r.island)
      bytes = std::max(bytes, link.at("bytes_sent").get<uint64_t>() + link.at("bytes_received").get<uint64_t>());
  }
  return bytes;
}

// ---- collectives ------------------------------------------------------------------------------------------------------------------

enum Kind { AllReduce, Broadcast, AllGather, ReduceScatter };
constexpr const char *kNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter"};

// What rank `rank` gives, element `i` of all it gives: small whole numbers, so that every order gives one sum.
int contribution(int rank, size_t i) { return static_cast<int>((i / 64 * 7 + i + 3 * static_cast<size_t>(rank)) % 5); }

// One collective of a rank, out of place, and what must be in all of its memory then. Only sums and BXOR.
template <class T>
void run(const FleetRank &r, Kind kind, isthmus_redop op, size_t count, int root = 0) {
  constexpr isthmus_dtype kType = std::is_same_v<T, float> ? ISTHMUS_FLOAT32 : ISTHMUS_INT32;
  const auto world = static_cast<size_t>(r.size), me = static_cast<size_t>(r.rank);
  const size_t in = kind == ReduceScatter ? world * count : count, out = kind == AllGather ? world * count : count;
  const bool reads = kind != Broadcast || r.rank == root;
  constexpr size_t kGap = 3;  // between the two, and behind them
  std::vector<T> want(in + kGap + out + kGap, T{90});
  for (size_t i = 0; reads && i < in; ++i) want[i] = static_cast<T>(contribution(r.rank, i));
  FleetMemory memory(r, want.size() * sizeof(T));
  memory.put(want.data(), want.size() * sizeof(T));

  const auto reduced = [&](size_t i) {
    int x = 0;
    for (int q = 0; q < r.size; ++q) x = op == ISTHMUS_BXOR ? x ^ contribution(q, i) : x + contribution(q, i);
    return x;
  };
  for (size_t i = 0; i < out; ++i) {
    const int x = kind == AllReduce   ? reduced(i)
                  : kind == Broadcast ? contribution(root, i)
                  : kind == AllGather ? contribution(static_cast<int>(i / count), i % count)
                                      : reduced(me * count + i);
    want[in + kGap + i] = static_cast<T>(x);
  }
  const void *const send = reads ? memory.at(0) : nullptr;
  void *const recv = memory.at((in + kGap) * sizeof(T));
  const isthmus_result result =
      kind == AllReduce   ? isthmus_all_reduce(r.comm, send, recv, count, kType, op, nullptr, nullptr)
      : kind == Broadcast ? isthmus_broadcast(r.comm, send, recv, count, kType, root, nullptr, nullptr)
      : kind == AllGather ? isthmus_all_gather(r.comm, send, recv, count, kType, nullptr, nullptr)
                          : isthmus_reduce_scatter(r.comm, send, recv, count, kType, op, nullptr, nullptr);
  const std::string name = std::string(kNames[kind]) + " of " + std::to_string(count) + ", root " + std::to_string(root);
  FLEET_MUST(r, result == ISTHMUS_OK || (ADD_FAILURE() << name, false));
  std::vector<T> got(want.size());
  memory.get(got.data(), got.size() * sizeof(T));
  const auto differs = static_cast<size_t>(std::mismatch(got.begin(), got.end(), want.begin()).first - got.begin());
  if (differs == got.size()) return;
  ADD_FAILURE() << "rank " << r.rank << ", " << name << ": element " << differs << " of the memory is " << got[differs]
                << ", not " << want[differs] << " (out begins at " << in + kGap << ")";
  throw Broken();
}

// Chunks are small, so that the last one goes in so many that each slot is used again where there is a bridge; the first is
// small enough for the leader exchange.
constexpr const char *kSettings = "EAGER_BYTES=1K;CHUNK_BYTES=4K";
constexpr size_t kLong = 100'003, kCounts[] = {1, 1000, kLong};

// ---- the tests --------------------------------------------------------------------------------------------------------------------

class IslandsOnTwoHosts : public testing::TestWithParam<std::tuple<size_t, size_t>> {};

// The library gets what it can do, across the hosts as well: of that Isthmus itself carries nothing between the island's ranks.
// What it cannot do crosses the hosts by TCP.
TEST_P(IslandsOnTwoHosts, AreServedByTheirLibraryAndTheRestGoesByTcp) {
  const Vendor &vendor = kVendors[std::get<0>(GetParam())];
  const Fleet fleet = fleet_of(kShapes[std::get<1>(GetParam())], vendor);
  const std::vector<FleetRank> ranks = ranks_of(fleet.text, fleet.hosts);
  ASSERT_LE(ranks.size(), Board::kMostRanks);
  Board board;
  std::vector<Hearing> hearings;
  for (size_t q = 0; q < ranks.size(); ++q) hearings.emplace_back(board, fleet.hosts, q);
  FleetOptions options;
  options.settings = kSettings;
  options.hosts = fleet.hosts;
  options.rendezvous = [&](const FleetRank &r, isthmus_options &o) {
    o.id = nullptr;
    o.exchange = Hearing::all_gather;
    o.exchange_context = &hearings[static_cast<size_t>(r.rank)];
  };
  fly(fleet.text, options, [&](FleetRank &r) {
    const auto elsewhere = std::count_if(ranks.begin(), ranks.end(), [&](const FleetRank &q) { return q.host != r.host; });
    // Else they would share a host in some part, and the rest of this would prove less than it says.
    FLEET_MUST(r, hearings[static_cast<size_t>(r.rank)].changed() == 2 * static_cast<size_t>(elsewhere));
    expect_two_hosts(r, ranks, vendor);

    constexpr uint64_t kPayload = kLong * 4;
    const uint64_t before = carried(r, ranks);
    for (const size_t count : kCounts) {
      run<float>(r, AllReduce, ISTHMUS_SUM, count);
      for (int root = 0; root < r.size; ++root) run<float>(r, Broadcast, ISTHMUS_SUM, count, root);
      run<float>(r, AllGather, ISTHMUS_SUM, count);
      run<float>(r, ReduceScatter, ISTHMUS_SUM, count);
    }
    const uint64_t served = carried(r, ranks);
    if (r.vendor) { EXPECT_LT(served - before, kPayload / 4) << "rank " << r.rank << ": the library's work went by TCP"; }

    // Ranks of one process share the link: nobody begins before all have looked at it.
    FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
    for (const size_t count : kCounts) {
      run<int>(r, AllReduce, ISTHMUS_BXOR, count);
      run<int>(r, ReduceScatter, ISTHMUS_BXOR, count);
    }
    FLEET_MUST(r, isthmus_barrier(r.comm, nullptr, nullptr) == ISTHMUS_OK);
    if (r.vendor) { EXPECT_GT(carried(r, ranks) - served, kPayload / 4) << "rank " << r.rank << ": how else did it cross?"; }
  });
}

INSTANTIATE_TEST_SUITE_P(, IslandsOnTwoHosts,
                         testing::Combine(testing::Range(size_t{0}, std::size(kVendors)),
                                          testing::Range(size_t{0}, std::size(kShapes))),
                         [](const auto &p) {
                           return std::string(kVendors[std::get<0>(p.param)].family) + kShapes[std::get<1>(p.param)].name;
                         });

}  // namespace
}  // namespace isthmus_test

int main(int argc, char **argv) {
  ::setenv("REHEARSAL_DEVICES", "2", 1);
  ::setenv("REHEARSAL_QUIET", "1", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
