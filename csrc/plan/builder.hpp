// What the templates are written with: ranges inside a chunk, the clusters of ranks that share memory, and a builder of
// steps. Internal to the planner.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "plan/plan.hpp"

namespace isthmus::plan {

inline constexpr uint64_t kLine = 64;  // pieces are multiples of this: a cache line, and a whole number of any element
inline constexpr uint64_t kTokenBytes = 8;
enum Counter : uint8_t { kCopied = 0, kReduced = 1, kConsumed = 2, kSpare = 3 };
inline constexpr uint32_t kLeastIslandSlots = 6;
inline constexpr uint64_t kDeviceChunks = 4;      // chunks of the setting in one, where a device copies them
inline constexpr uint64_t kDeviceSlotChunks = 2;  // of these a slot has at the most
inline constexpr size_t kMostMultiple =
    4096;  // of group sizes that chunks are cut for: islands of sizes beyond are dissolved

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
std::vector<Range> complement(uint64_t length, std::vector<Range> holes);

// Ranks that share memory: all of them where the topology is flat (group by group), else the groups.
struct Clusters {
  explicit Clusters(const topology::Topology &t);
  std::vector<std::vector<int>> members;
  std::vector<size_t> of, at;        // rank -> cluster, position in it
  std::vector<bool> library;         // a vendor's library serves the cluster: nobody in it reads another's slots
  std::vector<uint32_t> group_ends;  // flat: ends of the groups among the members; empty: one group a cluster
  size_t largest = 1;
  size_t size(size_t cluster) const noexcept { return members[cluster].size(); }
};

// Whether the ranks of several groups, some served by libraries, exchange by slots that all of them read: on one host, where there is a
// template for it (shared_islands.cpp).
bool by_shared_slots(const topology::Topology &t, Collective c) noexcept;

class Builder {
 public:
  Builder(const topology::Topology &t, const Clusters &all, int me, Plan &p);

  const topology::Topology &topology;
  const Clusters &clusters;
  Plan &plan;
  const Request &request;
  const int rank, world;
  const size_t cluster, position;   // mine
  const std::vector<int> &members;  // of my cluster
  const size_t count;               // members.size()
  const size_t others;              // clusters other than mine
  const bool library;               // my cluster is served by a vendor's library
  const bool shared_slots;          // by_shared_slots()
  const bool varying;               // v-collective: sizes are operands of the launch
  const bool scaled;                // PREMUL_SUM
  const bool devices;               // some rank's memory can only be reached by its device
  const uint64_t ratio;             // bytes of a partial result per byte of data
  bool stream = false;              // outputs are too large for the caches
  std::vector<int> inside;          // inside_of(): whose blocks plan_inside() moves

  // Sets chunk, chunks and slots. `regions`: chunks of memory that a slot needs on the rank that needs most.
  void choose_chunk(uint64_t regions);
  uint32_t depth = 1;  // slots - 1, or more where no slot is used twice: bounds the skews
  // A message in at most 64 chunks or so, which the groups with libraries can cut in equal pieces.
  void choose_island_chunk(uint64_t regions = 1);
  // Whether any group is served by a library.
  bool libraries() const noexcept;
  // A rank of that cluster sends from slots, which its receivers acknowledge where slots are used again.
  bool acknowledged(size_t other) const noexcept { return clusters.library[other] && reuses(); }
  bool reuses() const noexcept { return varying || plan.chunks > plan.slots; }
  Range whole() const noexcept { return {0, plan.chunk}; }
  bool stays(int q) const noexcept { return std::find(inside.begin(), inside.end(), q) != inside.end(); }
  int at(size_t other, size_t index) const noexcept { return clusters.members[other][index]; }
  // Calls f(rank) for the other members, the next one first, so that not all ranks read the same slot at once.
  template <class F>
  void each_other_member(F f) const {
    for (size_t i = 1; i < count; ++i) f(members[(position + i) % count]);
  }

  // all_gather between clusters. The ranks of the other clusters, cluster by cluster: block i of them is taken by member i mod count of
  // mine. taker(h): who takes my block in cluster h.
  std::vector<int> outside() const;
  int taker(size_t other) const;

  // ---- spans
  static Span input(uint32_t block, uint64_t at);
  static Span output(uint32_t block, uint64_t at);
  Span ring(int owner, uint64_t at) const;
  static Span scratch(uint64_t at, bool partial = false);
  // `s` as a source of a reduction: what a library made of the numbers of that cluster, or one of its ranks had.
  Span contribution(size_t of_cluster, Span s) const;
  Extent extent(Memory of, uint32_t block, Range r) const;
  static Span device(uint64_t at);
  uint64_t need_device(uint64_t bytes);   // reserves, returns the offset
  uint64_t need_scratch(uint64_t bytes);  // reserves, returns the offset
  void need_ring(uint64_t bytes);         // slot bytes

  // ---- steps, appended to the last stage
  void stage(const char *name, uint32_t skew);  // of the host list
  void device_stage(const char *name, uint32_t skew, bool beside = false);
  void move(const Extent &e, Span from, Span to, bool scale = false, bool streamed = false);
  void reduce(const Extent &e, const std::vector<Span> &from, const std::vector<uint32_t> &ends, Span to, bool partial,
              const Span *second = nullptr, bool streamed = false);
  void send(int peer, const Extent &e, Span from);
  void recv(int peer, const Extent &e, Span to);
  void send_token(int peer, Extent e, Span from);
  void recv_token(int peer, Extent e, Span to);
  void call(IslandCall call, When when, Extent e, Span from, Span to, int root = 0);
  void taken();                                               // no link reads what was sent of this chunk any more
  void post(uint8_t counter);                                 // the value c + 1
  void wait(int peer, uint8_t counter);                       // for c + 1
  void wait(int peer, uint8_t counter, const Extent &guard);  // the same, where there is something to wait for
  void wait_reuse(int peer, uint8_t counter);                 // for c + 1 - slots: the slot's last use is over
  void wait_reuse(int peer, uint8_t counter, const Extent &guard);
  void finish();  // drops empty stages, sets max_skew and uses_links

 private:
  Step &step(StepKind kind);
  Span user(Span s) const;  // with the stride of this plan
  bool on_device_ = false;  // steps go to the device list
};

// The templates: append the stages of one collective. reductions.cpp and moves.cpp.
void plan_all_reduce(Builder &b);
void plan_island(Builder &b);  // one group with a library and nobody else: its call
void plan_island_broadcast(Builder &b);
void plan_island_all_gather(Builder &b);
void plan_shared_broadcast(Builder &b);   // any rank, where shared_slots holds; shared_islands.cpp
void plan_shared_all_gather(Builder &b);  // likewise
void plan_shared_all_reduce(Builder &b);
void plan_island_reduce(Builder &b);
void plan_island_reduce_scatter(Builder &b);
void plan_island_all_reduce(Builder &b);  // a rank of a group with a library, among other groups
// Adds to the finished plan of a rank the blocks that stay in its group: calls of the library behind the gate of the first chunk.
void plan_inside(Builder &b);
// Turns the finished plan of a host rank into that of one whose memory only its device can touch. staging.cpp.
void stage_user_memory(Builder &b);
// The part of domain `domain` that rank j of cluster h reduces or stages in an all_reduce.
Range share_of(const Builder &b, const std::vector<Range> &domains, size_t h, size_t j, size_t domain);
// The piece of a whole chunk that rank j of cluster h reduces in a reduce or reduce_scatter.
Range piece_at(const Builder &b, size_t h, size_t j);
void plan_reduce(Builder &b);
void plan_reduce_scatter(Builder &b);
void plan_broadcast(Builder &b);
void plan_all_gather(Builder &b);
void plan_exchange(Builder &b);  // all_to_all, gather, scatter
void plan_barrier(Builder &b);
void plan_point_to_point(Builder &b);

// Ranges of a chunk that the clusters own, by bridge_shares of their weights, cut at multiples of kLine; `without` gets
// nothing.
std::vector<Range> domains_of(const Builder &b, ptrdiff_t without = -1);

}  // namespace isthmus::plan
