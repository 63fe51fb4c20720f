// What all ranks of a communicator have agreed on, and plans are made of.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/blob.hpp"
#include "plan/plan.hpp"
#include "process/context.hpp"
#include "topology/topology.hpp"

namespace isthmus::comm {

struct Terms {
  uint64_t eager_bytes = 0, chunk_bytes = 0;
  uint64_t stream_bytes = 32 << 20;  // of outputs, and more: written past the caches. This host's
  uint64_t leader_bytes = plan::kDefaultLeaderBytes;
  plan::LeaderBytesFrom leader_bytes_from = plan::LeaderBytesFrom::Default;
  bool libraries = false;  // some island is served by one
  bool devices = false;    // some rank works on a device's memory
  int fnuz_rank = -1;      // the first whose device has another float8, or -1
  // Fixed rings, and receive slots behind them, as all ranks have them. `reach`: what this rank's device reaches on all ranks.
  bool fixed_rings = false;
  uint64_t ring_bytes = 0, recv_slots = 0, reach = 0;
  std::vector<std::string> lost;  // fast paths for which there was no room

  // One path of Lost is not taken. The log says it once a process: what one communicator has lost, those after it mostly lose as well.
  enum Lost : unsigned { kSmallChunks, kNoRing, kNoRecvSlots };
  void lose(process::Context &context, const std::string &name, Lost path, std::string what);

  void choose_chunk(process::Context &context, std::span<const RankBlob> ranks, uint64_t staging);
  void choose_leader_bytes(std::span<const RankBlob> ranks, const topology::Topology &islands);
};

}  // namespace isthmus::comm
