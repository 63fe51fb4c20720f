// Ranks of islands that meet on several hosts, host by host. Internal to the planner.
//
// A *host* here is the ranks that share memory (Topology::memory_of), whatever islands they are of. An island with a library may have ranks on
// several hosts, and its library spreads what the island has, across hosts too. So what a host needs of a chunk is what its ranks need that
// no library brings them, and this differs along the chunk.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/builder.hpp"

namespace isthmus::plan {

class Hosts {
 public:
  explicit Hosts(const Builder &b);

  std::vector<std::vector<int>> members;  // by host: its ranks, ascending
  std::vector<size_t> of, at;             // rank -> host, place in it
  size_t here = 0;                        // this rank's
  size_t count() const noexcept { return members.size(); }
  const std::vector<int> &neighbours() const noexcept { return members[here]; }  // and this rank
  // Calls f(rank) for the other ranks of this rank's host, the next one first.
  template <class F>
  void each_neighbour(F f) const {
    const auto &mine = members[here];
    for (size_t i = 1; i < mine.size(); ++i) f(mine[(place_ + i) % mine.size()]);
  }
  // `range` in parts for the hosts for which `takes` holds, by the rates of the bridges of their ranks; empty parts for the others.
  std::vector<Range> domains(Range range, const std::vector<bool> &takes) const;

 private:
  std::vector<double> rates_;  // by host
  size_t place_ = 0;
};

// What lies between two neighbours of the ascending `cuts`, which may have doubles.
template <class F>
void each_between(std::vector<uint64_t> cuts, F f) {
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) f(Range{cuts[i], cuts[i + 1]});
}

}  // namespace isthmus::plan
