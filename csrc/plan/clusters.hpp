// Who stands where: ranges inside a chunk, the clusters of ranks that share memory, and a rank's place among them. Internal to the planner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/collective.hpp"
#include "topology/topology.hpp"

namespace isthmus::plan {

inline constexpr uint64_t kLine = 64;  // pieces are multiples of this: a cache line, and a whole number of any element

struct Range {  // bytes of a chunk
  uint64_t begin = 0, end = 0;
  uint64_t size() const noexcept { return end > begin ? end - begin : 0; }
  bool empty() const noexcept { return end <= begin; }
};
inline Range intersect(Range a, Range b) noexcept {
  const uint64_t begin = a.begin > b.begin ? a.begin : b.begin, end = a.end < b.end ? a.end : b.end;
  return {begin, end > begin ? end : begin};
}
// Piece `index` of `parts` nearly equal pieces of `whole`, cut at multiples of kLine.
Range piece_of(Range whole, size_t parts, size_t index) noexcept;
// What the ascending, disjoint `holes` leave of [0, length).
std::vector<Range> complement(uint64_t length, const std::vector<Range> &holes);

// Ranks that share memory: all of them where the topology is flat (island by island), else the islands.
struct Clusters {
  explicit Clusters(const topology::Topology &t);
  std::vector<std::vector<int>> members;
  std::vector<size_t> of, at;        // rank -> cluster, position in it
  std::vector<bool> library;         // a vendor's library serves the cluster: nobody in it reads another's slots
  std::vector<uint32_t> group_ends;  // flat: where the islands end among the members; empty: one island a cluster
  size_t largest = 1;
  size_t size(size_t cluster) const noexcept { return members[cluster].size(); }
};

// Whether the ranks of several islands, some served by libraries, exchange by slots that all of them read: on one host, where there is a
// template for it (shared_islands.cpp).
bool by_shared_slots(const topology::Topology &t, Collective c) noexcept;

// Whether islands, some served by libraries, meet on hosts that are several: on each host by slots that all of its ranks read, and by links
// between the hosts, where there is a template for it (hosts.cpp).
bool by_hosts(const topology::Topology &t, Collective c) noexcept;

// One rank's place: its own cluster, and the clusters of the others.
class Neighbourhood {
 public:
  Neighbourhood(const topology::Topology &t, const Clusters &all, int me);

  const topology::Topology &topology;
  const Clusters &clusters;
  const int rank, world;
  const size_t cluster, position;   // of this rank: its cluster, and its place in the cluster
  const std::vector<int> &members;  // of its cluster
  const size_t count;               // members.size()
  const size_t others;              // how many clusters there are beside its own
  const bool library;               // a vendor's library serves its cluster

  // Whether any island is served by a library.
  bool libraries() const noexcept;
  int at(size_t other, size_t index) const noexcept { return clusters.members[other][index]; }
  // Calls f(rank) for the other members, the next one first, so that not all ranks read the same slot at once.
  template <class F>
  void each_other_member(F f) const {
    for (size_t i = 1; i < count; ++i) f(members[(position + i) % count]);
  }

  // all_gather between clusters. outside(): the ranks of the other clusters, cluster by cluster. Block i of them is taken by member
  // i mod count of this cluster. taker(h): the rank of cluster h that takes this rank's block.
  std::vector<int> outside() const;
  int taker(size_t other) const;
};

}  // namespace isthmus::plan
