// Short ways to write worlds and operations in tests.
#pragma once

#include <string>
#include <vector>

#include "prove.hpp"

namespace isthmus::prover {

// A library that can do everything.
inline IslandTable whole_table() {
  IslandTable table;
  for (int c = 0; c < kIslandCalls; ++c)
    for (int t = 0; t < kDTypeCount; ++t)
      for (int o = 0; o < kRedOpCount; ++o)
        table.allow(static_cast<IslandCall>(c), static_cast<DType>(t), static_cast<RedOp>(o));
  return table;
}

// One letter a rank: its island; a capital: served by a library; from N and n on: its memory is a device's, which the host cannot touch.
// Hosts likewise; empty: one host.
inline topology::Topology world_of(const std::string &islands, const std::string &hosts = "",
                                   topology::Bridge bridge = topology::Bridge::Tcp) {
  std::vector<topology::RankInfo> ranks;
  for (size_t i = 0; i < islands.size(); ++i) {
    topology::RankInfo r;
    r.island = std::string(1, islands[i]);
    if (islands[i] >= 'A' && islands[i] <= 'Z') {
      r.ccl = "library";
      r.ccl_table = whole_table();
    }
    if (islands[i] >= 'n' || (islands[i] >= 'N' && islands[i] <= 'Z')) r.device = "device:0";
    r.host = r.hostname = hosts.empty() ? "host" : std::string("host-") + hosts[i];
    ranks.push_back(r);
  }
  return topology::make_topology(ranks, bridge);
}

inline Operation operation_of(plan::Collective c, uint64_t bytes, uint64_t chunk = 256, uint32_t slots = 4) {
  Operation op;
  op.request.collective = c;
  op.request.bytes = c == plan::Collective::Barrier ? 0 : bytes;
  op.request.chunk_bytes = chunk;
  op.request.max_slots = slots;
  op.request.small_bytes = 64;
  return op;
}

}  // namespace isthmus::prover
