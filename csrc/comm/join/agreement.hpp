// Step 2 of joining: the offers of all ranks, compared, and what follows from them.
#pragma once

#include <optional>
#include <vector>

#include "comm/blob.hpp"
#include "comm/join/invitation.hpp"
#include "comm/join/offer.hpp"
#include "comm/join/rollback.hpp"
#include "topology/topology.hpp"

namespace isthmus::comm::join {

// The ranks, their islands, and who shares memory with whom.
struct Map {
  topology::Topology islands;  // and their libraries
  // What libraries cannot do is done as if they were not there, so this one knows none.
  topology::Topology memory;
  // Whether messages between this rank and `q` go by streams of a connection.
  bool streamed(int rank, int q) const {
    return !memory.flat && memory.group_of[static_cast<size_t>(q)] != memory.group_of[static_cast<size_t>(rank)];
  }
};
// `part`: the ranks need not have all islands of which the settings declare rates.
Map make_map(const std::vector<topology::RankInfo> &infos, topology::Bridge bridge, const Settings &settings, bool part);

struct Agreement {
  std::vector<RankBlob> ranks;
  std::vector<topology::RankInfo> infos;  // of the ranks, with their addresses
  topology::Bridge bridge = topology::Bridge::Auto;
  Map map;
  std::optional<topology::Group> island;  // of this rank, where a library serves it
  Rollback key;                           // of the job, which the mesh takes connections for
};
// Collective: one exchange. Every refusal is alike on all ranks, and names the rank that differs or lacks something.
Agreement agree(const Invitation &invitation, const Offer &offer);

}  // namespace isthmus::comm::join
