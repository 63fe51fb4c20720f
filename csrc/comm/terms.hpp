// What all ranks of a communicator have agreed on. Plans are made of the terms. Of a field that is of one rank alone, the comment says so.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/blob.hpp"
#include "comm/numbering.hpp"
#include "plan/plan.hpp"
#include "process/context.hpp"
#include "topology/topology.hpp"

namespace isthmus::comm {

// The most bytes of a ring at a fixed place, of the staging memory of a process.
inline uint64_t most_fixed_ring(uint64_t staging) noexcept { return staging / 16 / 4096 * 4096; }

// What a network of 10^9 bits a second carries in a microsecond: hosts that are far apart mostly have one as fast.
inline constexpr uint64_t kFarBytesPerUs = 125;

struct Terms {
  uint64_t eager_bytes = 0, chunk_bytes = 0;
  uint64_t stream_bytes = 32 << 20;  // outputs of that many bytes and more are written past the caches. Of this rank's host
  uint64_t leader_bytes = plan::kDefaultLeaderBytes;
  plan::LeaderBytesFrom leader_bytes_from = plan::LeaderBytesFrom::Default;
  Numbering numbering;     // of the ranks, for people
  bool libraries = false;  // a library serves some island
  bool devices = false;    // some rank works on a device's memory
  int fnuz_rank = -1;      // the first rank whose device has another float8 (device::Float8), or -1
  // Fixed rings, and receive slots behind the rings, as all ranks have them. `reach`, of this rank alone: the bytes of the rings that its device
  // reaches on all ranks.
  bool fixed_rings = false;
  uint64_t ring_bytes = 0, recv_slots = 0, reach = 0;
  uint64_t round_trip_us = 0;  // by TCP, of the two ranks that are farthest from each other
  uint64_t paced_bytes = 0;    // of plan::Request
  bool far = false;            // that is so long that many chunks are to be under way (plan::Request::far)
  uint64_t way_bytes() const noexcept { return round_trip_us / 2 * kFarBytesPerUs; }  // of plan::Request
  std::vector<std::string> lost;  // fast paths for which there was no room

  // Notes that a path of Lost is not taken. The log says so once in a process: later communicators mostly lose the same path.
  enum Lost : unsigned { kSmallChunks, kNoRing, kNoRecvSlots, kShallow };
  void lose(process::Context &context, const std::string &name, Lost path, std::string what);

  // `asked`: the setting, as all ranks have it. `staging`: the least of all ranks. `sharing`: the most ranks that share memory.
  void choose_chunk(process::Context &context, std::span<const RankBlob> ranks, uint64_t asked, uint64_t staging,
                    size_t sharing);
  // Behind choose_chunk(). `from_us`: the setting, as all ranks have it.
  void choose_far(process::Context &context, const std::string &name, uint64_t round_trip, uint64_t from_us,
                  uint64_t staging, std::span<const RankBlob> ranks);
  void choose_pace(const topology::Topology &topology);  // where no hosts are far from each other
  void choose_leader_bytes(std::span<const RankBlob> ranks, const topology::Topology &topology);
};

}  // namespace isthmus::comm
