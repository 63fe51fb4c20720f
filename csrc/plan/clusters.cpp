#include "plan/clusters.hpp"

#include <algorithm>

namespace isthmus::plan {

Range piece_of(Range whole, size_t parts, size_t index) noexcept {
  const uint64_t lines = (whole.size() + kLine - 1) / kLine;
  const uint64_t from = lines / parts * index + lines % parts * index / parts;
  const uint64_t to = lines / parts * (index + 1) + lines % parts * (index + 1) / parts;
  return {whole.begin + std::min(from * kLine, whole.size()), whole.begin + std::min(to * kLine, whole.size())};
}

std::vector<Range> complement(uint64_t length, const std::vector<Range> &holes) {
  std::vector<Range> out;
  uint64_t at = 0;
  for (const Range &h : holes) {
    if (h.empty()) continue;
    if (h.begin > at) out.push_back({at, h.begin});
    at = h.end;
  }
  if (at < length) out.push_back({at, length});
  return out;
}

Clusters::Clusters(const topology::Topology &t) : of(t.ranks.size()), at(t.ranks.size()) {
  for (const auto &g : t.islands) library.push_back(!g.ccl.empty());
  if (t.flat) {
    members.emplace_back();
    library.assign(1, false);
    for (const auto &g : t.islands) {
      members[0].insert(members[0].end(), g.ranks.begin(), g.ranks.end());
      group_ends.push_back(static_cast<uint32_t>(members[0].size()));
    }
  } else {
    for (const auto &g : t.islands) members.push_back(g.ranks);
  }
  for (size_t g = 0; g < members.size(); ++g) {
    largest = std::max(largest, members[g].size());
    for (size_t i = 0; i < members[g].size(); ++i) {
      of[static_cast<size_t>(members[g][i])] = g;
      at[static_cast<size_t>(members[g][i])] = i;
    }
  }
}

bool by_shared_slots(const topology::Topology &t, Collective c) noexcept {
  const bool gathers = c == Collective::AllGather || c == Collective::AllGatherV;
  return !t.flat && t.islands.size() > 1 && topology::one_memory(t) &&
         (is_reduction(c) || gathers || c == Collective::Broadcast);
}

bool by_hosts(const topology::Topology &t, Collective c) noexcept {
  if (!topology::has_libraries(t) || topology::one_memory(t)) return false;
  if (c != Collective::Broadcast && c != Collective::AllGather && c != Collective::AllReduce &&
      c != Collective::ReduceScatter)
    return false;
  const auto ranks = static_cast<int>(t.ranks.size());
  for (int r = 0; r < ranks; ++r)
    if (t.island_of[static_cast<size_t>(t.memory_of[static_cast<size_t>(r)])] != t.island_of[static_cast<size_t>(r)])
      return true;
  return false;
}

Neighbourhood::Neighbourhood(const topology::Topology &t, const Clusters &all, int me)
    : topology(t),
      clusters(all),
      rank(me),
      world(t.size()),
      cluster(all.of[static_cast<size_t>(me)]),
      position(all.at[static_cast<size_t>(me)]),
      members(all.members[cluster]),
      count(members.size()),
      others(all.members.size() - 1),
      library(all.library[cluster]) {}

bool Neighbourhood::libraries() const noexcept {
  return std::find(clusters.library.begin(), clusters.library.end(), true) != clusters.library.end();
}

std::vector<int> Neighbourhood::outside() const {
  std::vector<int> out;
  for (size_t h = 0; h <= others; ++h)
    if (h != cluster) out.insert(out.end(), clusters.members[h].begin(), clusters.members[h].end());
  return out;
}

// This rank's place among the ranks outside of that cluster: the ranks before it, without the cluster's own where those come first.
int Neighbourhood::taker(size_t other) const {
  size_t place = position;
  for (size_t h = 0; h < cluster; ++h)
    if (h != other) place += clusters.size(h);
  return at(other, place % clusters.size(other));
}

}  // namespace isthmus::plan
