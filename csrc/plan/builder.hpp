// What the templates are written with: a builder of one rank's plan, which knows how a message is cut. Internal to the planner.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/step_writer.hpp"

namespace isthmus::plan {

inline constexpr uint32_t kLeastIslandSlots = 6;
// A chunk is sent, finished and collected in three turns of the host. A turn begins with the wait for what the device staged. With three chunks
// ahead the device has staged the chunk whatever the host still owes. With four chunks ahead the device meanwhile stages the next one.
// The slot of a chunk is written again when the device has passed the gate of a later chunk. That later chunk was collected after all answers of
// the slot's last chunk were taken; it comes kIslandAhead + 2 later.
inline constexpr uint32_t kIslandAhead = 4;
static_assert(kLeastIslandSlots >= kIslandAhead + 2);
inline constexpr uint64_t kDeviceChunks = 4;      // chunks of the setting in one, where a device copies them
inline constexpr uint64_t kDeviceSlotChunks = 2;  // of these a slot has at the most
// The largest common multiple of island sizes that chunks are cut for. Beyond, the islands are dissolved.
inline constexpr size_t kMostMultiple = 4096;

// The bytes that a slot has for each byte of a chunk, on the rank that needs most.
struct SlotShare {
  uint64_t of = 1, parts = 1;
  static SlotShare most(SlotShare a, SlotShare b) noexcept { return a.of * b.parts < b.of * a.parts ? b : a; }
};

class Builder : public StepWriter {
 public:
  Builder(const topology::Topology &t, const Clusters &all, int me, Plan &p);

  const bool shared_slots;  // by_shared_slots()
  const bool across_hosts;  // by_hosts()
  const bool scaled;        // PREMUL_SUM
  const bool devices;       // some rank's memory can only be reached by its device
  bool stream = false;      // outputs are too large for the caches
  std::vector<int> inside;  // inside_of(): whose blocks plan_inside() moves
  uint32_t depth = 1;       // slots - 1, or more where no slot is used twice: bounds the skews
  // From the turn in which a frame is sent to the turn in which it is taken. Of a far request as many as slots allow: what a link carries is at the
  // most what is under way for each round trip, and that is so many chunks.
  uint32_t ahead = 1;
  uint64_t unit = kLine;  // of which chunks are multiples: islands with libraries cut them in equal pieces of whole lines

  // The bytes of a chunk, not more than `fast`, that are worth its calls: Request::paced_bytes, but not less than so many chunks of the setting. Notes in the
  // plan where they are fewer.
  uint64_t paced(uint64_t fast, uint64_t least_chunks) noexcept;
  // Sets chunk, chunks and slots. `regions`: chunks of memory that a slot needs on the rank that needs most.
  void choose_chunk(uint64_t regions);
  // The same, for a message that the islands with libraries can cut in equal pieces: in 64 chunks, but in no shorter ones than a library works well
  // with, and in no longer ones than slots hold. Where a rank's slot has a piece of a chunk alone, chunks may be longer. `blocks`: of so many blocks
  // a chunk is to be as long as the library works well with.
  void choose_island_chunk(SlotShare share = {}, uint64_t blocks = 1);
  // A rank of that cluster sends from slots, which its receivers acknowledge where slots are used again.
  bool acknowledged(size_t other) const noexcept { return clusters.library[other] && reuses(); }
  bool stays(int q) const noexcept { return std::find(inside.begin(), inside.end(), q) != inside.end(); }
};

// The templates: each appends the stages of one collective to a plan.
// reductions.cpp
void plan_all_reduce(Builder &b);
void plan_reduce(Builder &b);
void plan_reduce_scatter(Builder &b);
// far_sums.cpp: where takes_one_way() holds
void plan_one_way_all_reduce(Builder &b);
// passed_sums.cpp: false, where no island makes sums for another
bool plan_passed_reduce_scatter(Builder &b);
// moves.cpp
void plan_broadcast(Builder &b);
void plan_exchange(Builder &b);  // all_to_all, gather, scatter
void plan_barrier(Builder &b);
void plan_point_to_point(Builder &b);
// all_gather.cpp
void plan_all_gather(Builder &b);
// islands.cpp: a rank of an island with a library, among other islands
void plan_island_all_reduce(Builder &b);
void plan_island_reduce(Builder &b);
void plan_island_reduce_scatter(Builder &b);
void plan_island_broadcast(Builder &b);
// island_all_gather.cpp: likewise, when the chunk has been chosen
void plan_island_all_gather(Builder &b);
// shared_islands.cpp, shared_sums.cpp: any rank, where shared_slots holds
void plan_shared_broadcast(Builder &b);
void plan_shared_all_gather(Builder &b);  // with counts too
void plan_shared_all_reduce(Builder &b);
void plan_shared_reduce(Builder &b);
void plan_shared_reduce_scatter(Builder &b);  // with counts too
// hosts.cpp: any rank, where across_hosts holds
void plan_hosts_all_reduce(Builder &b);
// host_sums.cpp, host_moves.cpp: likewise
void plan_hosts_reduce_scatter(Builder &b);
void plan_hosts_broadcast(Builder &b);
void plan_hosts_all_gather(Builder &b);
// island_calls.cpp
void plan_island(Builder &b);  // one island with a library and nobody else: its call
// Adds to the finished plan of a rank the blocks that stay in its island: calls of the library behind the gate of the first chunk.
void plan_inside(Builder &b);
// staging.cpp
// Turns the finished plan of a host rank into that of one whose memory only its device can touch.
void stage_user_memory(Builder &b);

// The part of domain `domain` that rank j of cluster h stages in a broadcast.
Range share_of(const Builder &b, const std::vector<Range> &domains, size_t h, size_t j, size_t domain);
// The same in an all_reduce. Between two islands each rank has as much to carry wherever the domains end. Between more, who has a larger part of the own
// island's domain has more. So there the libraries sum and gather every domain for itself, and all ranks have equal parts of it.
bool sums_by_domains(const Builder &b);
Range sum_share_of(const Builder &b, const std::vector<Range> &domains, size_t h, size_t j, size_t domain);
// The piece of a whole chunk that rank j of cluster h reduces in a reduce or reduce_scatter.
Range piece_at(const Builder &b, size_t h, size_t j);
// Piece j of that part of a chunk, for islands with a library of so many ranks.
Range equal_piece(Range part, size_t ranks, size_t j);
// The library's sum of the full or the shorter chunks (`when`) of that part of input block `block`: piece j goes to rank j, this rank's piece to `to`. A
// piece of a shorter chunk is summed by itself.
void scatter_sum(Builder &b, uint32_t block, Range part, Span to, When when);
void scatter_sum(Builder &b, uint32_t block, Span to, When when);  // of all of it
inline constexpr When kFullAndPart[] = {When::FullChunk, When::PartChunk};
// The device's stage of a small all_reduce: the library sums, the island's first rank gives the sum to its host at `mine` and takes the result at
// `result`, and the library spreads it.
void leader_stage(Builder &b, Extent e, Span mine, Span result);
// The library brings the pieces of that part of a chunk together on all ranks of the island, each of which has its own there: in `all`, where the chunk
// begins, of the block 0 of `of`.
void gather_pieces(Builder &b, Memory of, Range part, Span all);
void gather_pieces(Builder &b, Memory of, Span all);
// Ranges of a chunk that the clusters own, by bridge_shares of their weights, cut at multiples of the unit; `without` gets
// nothing.
std::vector<Range> domains_of(const Builder &b, ptrdiff_t without = -1);

}  // namespace isthmus::plan
