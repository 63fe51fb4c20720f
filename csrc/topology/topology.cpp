#include "topology/topology.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.hpp"

namespace isthmus::topology {
namespace {

const std::string &host_name(const RankInfo &r) { return r.hostname.empty() ? r.host : r.hostname; }

int number_in(const std::vector<RankInfo> &ranks, size_t rank) {
  return ranks[rank].slot < 0 ? static_cast<int>(rank) : ranks[rank].slot;
}

void check_shm_bridge(const std::vector<RankInfo> &ranks) {
  for (size_t r = 1; r < ranks.size(); ++r)
    if (island_name(ranks[r]) != island_name(ranks[0]) || ranks[r].host != ranks[0].host)
      for (size_t q = 0; q < r; ++q)
        if (island_name(ranks[r]) != island_name(ranks[q]) && ranks[r].host != ranks[q].host)
          fail(Code::Config,
               "ISTHMUS_BRIDGE=shm, but island '{}' (rank {}) is on host '{}' and island '{}' (rank {}) is on host '{}': "
               "shared memory does not reach between hosts. Use ISTHMUS_BRIDGE=auto or tcp",
               island_name(ranks[q]), number_in(ranks, q), host_name(ranks[q]), island_name(ranks[r]), number_in(ranks, r),
               host_name(ranks[r]));
}

double rate_over(const RankInfo &info, bool memory) noexcept {
  const double link = info.rates[memory ? Rate::Memory : Rate::Tcp];
  return info.device == "host" ? link : std::min({link, info.rates[Rate::DeviceToHost], info.rates[Rate::HostToDevice]});
}

// All ranks of an island carry equal parts, so the slowest of them says how fast they are together.
double rate_of(const Topology &t, const Island &island, bool memory) noexcept {
  double slowest = rate_over(t.ranks[static_cast<size_t>(island.ranks[0])], memory);
  for (const int r : island.ranks) slowest = std::min(slowest, rate_over(t.ranks[static_cast<size_t>(r)], memory));
  return slowest * static_cast<double>(island.ranks.size());
}

// The weights of `t` from its ranks' rates, which are all known.
void weigh(Topology &t) {
  const bool memory = one_memory(t);
  for (size_t i = 0; i < t.islands.size(); ++i) t.weights[i] = rate_of(t, t.islands[i], memory);
  const double least = *std::min_element(t.weights.begin(), t.weights.end());
  for (double &w : t.weights) w /= least;
  t.measured = true;
  t.digest = digest_of(t);
}

// "'a', 'b'"
std::string names_of_islands(const Topology &t) {
  std::vector<std::string> names;
  for (const RankInfo &r : t.ranks)
    if (std::find(names.begin(), names.end(), island_name(r)) == names.end()) names.push_back(island_name(r));
  std::string text;
  for (const std::string &name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text;
}

// The name that all ranks of the island have for it, or empty.
std::string name_of(const Topology &t, const Island &i) {
  const std::string &name = island_name(t.ranks[static_cast<size_t>(i.ranks[0])]);
  const bool all = std::all_of(i.ranks.begin(), i.ranks.end(),
                               [&](int r) { return island_name(t.ranks[static_cast<size_t>(r)]) == name; });
  return all ? name : std::string();
}

}  // namespace

bool one_memory(const Topology &t) noexcept {
  return std::all_of(t.memory_of.begin(), t.memory_of.end(), [](int first) { return first == 0; });
}

double bridge_rate(const Topology &t, int rank) noexcept {
  return rate_over(t.ranks[static_cast<size_t>(rank)], one_memory(t));
}

double slowest_bridge(const Topology &t) noexcept {
  const bool memory = one_memory(t);
  double least = rate_of(t, t.islands[0], memory);
  for (const Island &island : t.islands) least = std::min(least, rate_of(t, island, memory));
  return least;
}

int unmeasured_rank(const Topology &t) noexcept {
  const bool memory = one_memory(t);
  for (int r = 0; r < t.size(); ++r)
    if (!(rate_over(t.ranks[static_cast<size_t>(r)], memory) > 0)) return r;
  return -1;
}

std::string unequal_versions(const Topology &t, const Island &island) {
  std::vector<std::string> versions;
  std::string text;
  for (const int q : island.ranks) {
    const RankInfo &r = t.ranks[static_cast<size_t>(q)];
    if (std::find(versions.begin(), versions.end(), r.ccl_version) != versions.end()) continue;
    versions.push_back(r.ccl_version);
    text += formatted("{}rank {} has {} {}", text.empty() ? "" : ", ", t.number(q), r.ccl, r.ccl_version);
  }
  return versions.size() > 1 ? text : std::string();
}

int64_t measured_leader_bytes(const Topology &t) noexcept {
  const bool memory = one_memory(t);
  int64_t least = kMostLeaderBytes;
  for (const RankInfo &r : t.ranks) least = std::min(least, memory ? r.leader_bytes.memory : r.leader_bytes.tcp);
  return least;
}

void apply_profiles(Topology &t) {
  if (unmeasured_rank(t) < 0) weigh(t);
}

uint64_t digest_of(const Topology &t) noexcept {
  uint64_t h = 1469598103934665603ull;  // FNV-1a, byte by byte, so that every processor gets the same
  const auto add = [&h](uint64_t v) {
    for (int i = 0; i < 8; ++i) h = (h ^ ((v >> (8 * i)) & 0xff)) * 1099511628211ull;
  };
  add(t.ranks.size());
  add((t.flat ? 1 : 0) | (has_devices(t) ? 2 : 0));
  for (const int first : t.memory_of) add(static_cast<uint64_t>(first));
  for (size_t i = 0; i < t.islands.size(); ++i) {
    add(t.islands[i].ranks.size());
    for (int r : t.islands[i].ranks) add(static_cast<uint64_t>(r));
    add(std::bit_cast<uint64_t>(i < t.weights.size() ? t.weights[i] : 1.0));
    for (const char c : t.islands[i].ccl) add(static_cast<uint8_t>(c));
    if (!t.islands[i].ccl.empty())
      for (const auto &call : t.islands[i].ccl_table.ops)
        for (const uint16_t ops : call) add(ops);
  }
  return h;
}

namespace {

bool on_one_host(const std::vector<RankInfo> &ranks) noexcept {
  return std::all_of(ranks.begin(), ranks.end(), [&](const RankInfo &r) { return r.host == ranks[0].host; });
}

// By rank: the first rank that shares memory with it.
std::vector<int> memories_of(const std::vector<RankInfo> &ranks, Bridge bridge) {
  std::map<std::pair<std::string, std::string>, int> known;
  std::vector<int> first;
  for (const RankInfo &r : ranks) {
    const std::pair key{r.host, parts(bridge) ? island_name(r) : std::string()};
    first.push_back(known.try_emplace(key, static_cast<int>(first.size())).first->second);
  }
  return first;
}

}  // namespace

Topology make_topology(std::vector<RankInfo> ranks, Bridge bridge) {
  if (ranks.empty()) fail(Code::Argument, "a topology needs at least one rank");
  if (bridge == Bridge::Shm) check_shm_bridge(ranks);
  Topology t;
  t.bridge = bridge;
  t.ranks = std::move(ranks);
  const size_t world = t.ranks.size();
  t.island_of.resize(world);
  t.index_of.resize(world);
  t.memory_of = memories_of(t.ranks, bridge);
  const bool one_host = on_one_host(t.ranks);
  // What parts ranks that no library serves, beside their hosts.
  const auto part_of = [&](const RankInfo &r) {
    if (parts(bridge)) return island_name(r);
    return one_host || !r.ccl.empty() ? r.island : std::string();
  };
  std::map<std::tuple<std::string, std::string, std::string>, int> known;
  bool libraries = false;
  for (size_t r = 0; r < world; ++r) {
    const RankInfo &info = t.ranks[r];
    libraries = libraries || !info.ccl.empty();
    const auto [at, fresh] = known.try_emplace({part_of(info), info.ccl.empty() ? info.host : std::string(), info.ccl},
                                               static_cast<int>(t.islands.size()));
    if (fresh) t.islands.push_back({info.island, info.host, {}, info.ccl, info.ccl_table});
    Island &island = t.islands[static_cast<size_t>(at->second)];
    if (island.label != info.island) island.label.clear();
    island.ccl_table.keep(info.ccl_table);
    auto &members = island.ranks;
    t.island_of[r] = at->second;
    t.index_of[r] = static_cast<int>(members.size());
    members.push_back(static_cast<int>(r));
  }
  t.flat = one_memory(t) && !libraries;
  t.weights.assign(t.islands.size(), 1.0);
  t.digest = digest_of(t);
  return t;
}

bool has_devices(const Topology &t) noexcept {
  return std::any_of(t.ranks.begin(), t.ranks.end(), [](const RankInfo &r) { return r.device != "host"; });
}

bool has_libraries(const Topology &t) noexcept {
  return std::any_of(t.islands.begin(), t.islands.end(), [](const Island &i) { return !i.ccl.empty(); });
}

Topology dissolve(const Topology &t, const std::vector<bool> &keep) {
  std::vector<RankInfo> ranks = t.ranks;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (const auto i = static_cast<size_t>(t.island_of[r]); i >= keep.size() || !keep[i]) {
      ranks[r].ccl.clear();
      ranks[r].ccl_table = {};
    }
  Topology out = make_topology(std::move(ranks), t.bridge);
  if (t.measured) {  // an island of other ranks has another rate
    weigh(out);
    return out;
  }
  for (size_t i = 0; i < out.islands.size(); ++i) {
    const auto weight_of = [&](int rank) { return t.weights[static_cast<size_t>(t.island_of[static_cast<size_t>(rank)])]; };
    out.weights[i] = weight_of(out.islands[i].ranks[0]);
    for (const int rank : out.islands[i].ranks) out.weights[i] = std::min(out.weights[i], weight_of(rank));
  }
  out.digest = digest_of(out);
  return out;
}

void apply_rates(Topology &t, std::string_view rates) {
  if (t.measured) t.weights.assign(t.islands.size(), 1.0);
  t.measured = false;
  std::vector<double> declared(t.islands.size(), 0.0);
  std::string_view rest = rates;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    const size_t colon = entry.rfind(':');
    double rate = 0;
    if (colon != std::string_view::npos) {
      const auto [end, error] = std::from_chars(entry.data() + colon + 1, entry.data() + entry.size(), rate);
      if (error != std::errc{} || end != entry.data() + entry.size()) rate = 0;
    }
    if (!(rate > 0 && rate <= 1e6))
      fail(Code::Config, "ISTHMUS_BRIDGE_RATES={}: '{}' is not island:rate with a rate above 0 and at most 1000000", rates,
           entry);
    bool found = false;
    for (size_t r = 0; r < t.ranks.size(); ++r)
      if (island_name(t.ranks[r]) == entry.substr(0, colon)) {
        found = true;
        double &least = declared[static_cast<size_t>(t.island_of[r])];
        least = least > 0 ? std::min(least, rate) : rate;
      }
    if (!found)
      fail(Code::Config, "ISTHMUS_BRIDGE_RATES={}: no island is named '{}'; there is {}", rates, entry.substr(0, colon),
           names_of_islands(t));
  }
  for (size_t i = 0; i < t.islands.size(); ++i)
    if (declared[i] > 0) t.weights[i] = declared[i];
  t.digest = digest_of(t);
}

std::string to_json(const Topology &t) {
  using json = nlohmann::ordered_json;
  struct Set {
    std::string key, name;
    std::vector<int> ranks;
    std::vector<std::string> hosts;
  };
  std::vector<Set> hosts, named;
  const auto find = [](std::vector<Set> &sets, const std::string &key, const std::string &name) -> Set & {
    const auto it = std::find_if(sets.begin(), sets.end(), [&](const Set &s) { return s.key == key; });
    return it != sets.end() ? *it : sets.emplace_back(Set{key, name, {}, {}});
  };
  const bool memory = one_memory(t);
  json all = json::array();
  for (size_t r = 0; r < t.ranks.size(); ++r) {
    const RankInfo &info = t.ranks[r];
    const double rate = rate_over(info, memory);
    const int number = t.number(static_cast<int>(r));
    find(hosts, info.host, host_name(info)).ranks.push_back(number);
    Set &island = find(named, island_name(info), info.island);
    island.ranks.push_back(number);
    if (std::find(island.hosts.begin(), island.hosts.end(), host_name(info)) == island.hosts.end())
      island.hosts.push_back(host_name(info));
    all.push_back({{"rank", number},
                   {"host", info.host},
                   {"hostname", info.hostname},
                   {"address", info.address},
                   {"island", info.island},
                   {"device", info.device},
                   {"device_name", info.device_name},
                   {"maker", info.maker},
                   {"float8", info.fnuz ? "fnuz" : "ocp"},
                   {"ccl", info.ccl},
                   {"ccl_version", info.ccl_version},
                   {"process", info.process},
                   {"pid", info.pid},
                   {"numa", info.numa},
                   {"group", t.island_of[r]},
                   {"bridge_rate", rate > 0 ? json(rate) : json(nullptr)}});
  }
  json out = {{"world", t.ranks.size()},  {"flat", t.flat},          {"hosts", json::array()},
              {"islands", json::array()}, {"groups", json::array()}, {"ranks", std::move(all)}};
  for (const Set &h : hosts) out["hosts"].push_back({{"host", h.key}, {"hostname", h.name}, {"ranks", h.ranks}});
  for (const Set &i : named)
    out["islands"].push_back(
        {{"name", i.key}, {"label", i.name}, {"ranks", i.ranks}, {"host", i.hosts.front()}, {"hosts", i.hosts}});
  for (size_t i = 0; i < t.islands.size(); ++i)
    out["groups"].push_back({{"name", name_of(t, t.islands[i])},
                             {"island", t.islands[i].label},
                             {"host", t.islands[i].host},
                             {"ccl", t.islands[i].ccl},
                             {"ranks", t.numbers(t.islands[i].ranks)},
                             {"weight", t.weights[i]}});
  return out.dump(2);
}

}  // namespace isthmus::topology
