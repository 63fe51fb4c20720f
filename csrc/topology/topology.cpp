#include "topology/topology.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.hpp"

namespace isthmus::topology {
namespace {

std::string island_name(const RankInfo &r) { return r.island.empty() ? "the unnamed island" : "island '" + r.island + "'"; }

const std::string &host_name(const RankInfo &r) { return r.hostname.empty() ? r.host : r.hostname; }

void check_shm_bridge(const std::vector<RankInfo> &ranks) {
  for (size_t r = 1; r < ranks.size(); ++r)
    if (ranks[r].island != ranks[0].island || ranks[r].host != ranks[0].host)
      for (size_t q = 0; q < r; ++q)
        if (ranks[r].island != ranks[q].island && ranks[r].host != ranks[q].host)
          fail(Code::Config,
               "ISTHMUS_BRIDGE=shm, but {} (rank {}) is on host '{}' and {} (rank {}) is on host '{}': shared memory does "
               "not reach "
               "between hosts. Use ISTHMUS_BRIDGE=auto or tcp",
               island_name(ranks[q]), q, host_name(ranks[q]), island_name(ranks[r]), r, host_name(ranks[r]));
}

}  // namespace

uint64_t digest_of(const Topology &t) noexcept {
  uint64_t h = 1469598103934665603ull;  // FNV-1a, byte by byte, so that every processor gets the same
  const auto add = [&h](uint64_t v) {
    for (int i = 0; i < 8; ++i) h = (h ^ ((v >> (8 * i)) & 0xff)) * 1099511628211ull;
  };
  add(t.ranks.size());
  add(t.flat ? 1 : 0);
  for (size_t g = 0; g < t.groups.size(); ++g) {
    add(t.groups[g].ranks.size());
    for (int r : t.groups[g].ranks) add(static_cast<uint64_t>(r));
    add(std::bit_cast<uint64_t>(g < t.weights.size() ? t.weights[g] : 1.0));
  }
  return h;
}

Topology make_topology(std::vector<RankInfo> ranks, Bridge bridge) {
  if (ranks.empty()) fail(Code::Argument, "a topology needs at least one rank");
  if (bridge == Bridge::Shm) check_shm_bridge(ranks);
  Topology t;
  t.ranks = std::move(ranks);
  const size_t world = t.ranks.size();
  t.group_of.resize(world);
  t.index_of.resize(world);
  std::map<std::pair<std::string, std::string>, int> known;
  bool one_host = true, one_island = true;
  for (size_t r = 0; r < world; ++r) {
    const RankInfo &info = t.ranks[r];
    one_host = one_host && info.host == t.ranks[0].host;
    one_island = one_island && info.island == t.ranks[0].island;
    const auto [at, fresh] = known.try_emplace({info.island, info.host}, static_cast<int>(t.groups.size()));
    if (fresh) t.groups.push_back({info.island, info.host, {}});
    auto &members = t.groups[static_cast<size_t>(at->second)].ranks;
    t.group_of[r] = at->second;
    t.index_of[r] = static_cast<int>(members.size());
    members.push_back(static_cast<int>(r));
  }
  t.flat = one_host && (one_island || bridge != Bridge::Tcp);
  t.weights.assign(t.groups.size(), 1.0);
  t.digest = digest_of(t);
  return t;
}

void apply_rates(Topology &t, std::string_view rates) {
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
      fail(Code::Config, "ISTHMUS_BRIDGE_RATES={}: '{}' is not label:rate with a rate above 0 and at most 1000000", rates,
           entry);
    bool found = false;
    for (size_t g = 0; g < t.groups.size(); ++g)
      if (t.groups[g].island == entry.substr(0, colon)) t.weights[g] = rate, found = true;
    if (!found) fail(Code::Config, "ISTHMUS_BRIDGE_RATES={}: no island is labelled '{}'", rates, entry.substr(0, colon));
  }
  t.digest = digest_of(t);
}

std::string to_json(const Topology &t) {
  using json = nlohmann::ordered_json;
  struct Set {
    std::string key, name;
    std::vector<int> ranks;
    std::vector<std::string> hosts;
  };
  std::vector<Set> hosts, islands;
  const auto find = [](std::vector<Set> &sets, const std::string &key, const std::string &name) -> Set & {
    const auto it = std::find_if(sets.begin(), sets.end(), [&](const Set &s) { return s.key == key; });
    return it != sets.end() ? *it : sets.emplace_back(Set{key, name, {}, {}});
  };
  json all = json::array();
  for (size_t r = 0; r < t.ranks.size(); ++r) {
    const RankInfo &info = t.ranks[r];
    find(hosts, info.host, host_name(info)).ranks.push_back(static_cast<int>(r));
    Set &island = find(islands, info.island, info.island);
    island.ranks.push_back(static_cast<int>(r));
    if (std::find(island.hosts.begin(), island.hosts.end(), host_name(info)) == island.hosts.end())
      island.hosts.push_back(host_name(info));
    all.push_back({{"rank", r},
                   {"host", info.host},
                   {"hostname", info.hostname},
                   {"island", info.island},
                   {"device", info.device},
                   {"process", info.process},
                   {"pid", info.pid},
                   {"numa", info.numa},
                   {"group", t.group_of[r]}});
  }
  json out = {{"world", t.ranks.size()},  {"flat", t.flat},          {"hosts", json::array()},
              {"islands", json::array()}, {"groups", json::array()}, {"ranks", std::move(all)}};
  for (const Set &h : hosts) out["hosts"].push_back({{"host", h.key}, {"hostname", h.name}, {"ranks", h.ranks}});
  for (const Set &i : islands)
    out["islands"].push_back({{"label", i.key}, {"ranks", i.ranks}, {"host", i.hosts.front()}, {"hosts", i.hosts}});
  for (size_t g = 0; g < t.groups.size(); ++g)
    out["groups"].push_back({{"island", t.groups[g].island},
                             {"host", t.groups[g].host},
                             {"ranks", t.groups[g].ranks},
                             {"weight", t.weights[g]}});
  return out.dump(2);
}

}  // namespace isthmus::topology
