// Step 2 of joining: the offers of all ranks are compared. The islands, the map and the job's key follow from the offers.
#pragma once

#include <optional>
#include <vector>

#include "comm/blob.hpp"
#include "comm/join/invitation.hpp"
#include "comm/join/offer.hpp"
#include "comm/join/rollback.hpp"
#include "process/links.hpp"
#include "topology/topology.hpp"

namespace isthmus::comm::join {

// The ranks, their islands, and who shares memory with whom.
struct Map {
  topology::Topology topology;  // with the libraries of the islands
  // The same without libraries. What libraries cannot do is planned as if there were no libraries.
  topology::Topology memory;
  // Whether messages between `rank` and `q` go by streams of a connection.
  bool streamed(int rank, int q) const { return !topology::share_memory(memory, rank, q); }
};
// The settings declare the rates of a job's islands. A part of the job need not have all of these islands.
enum class MapOf : uint8_t { Job, Part };
Map make_map(const std::vector<topology::RankInfo> &infos, topology::Bridge bridge, const Settings &settings, MapOf what);

struct Agreement {
  std::vector<RankBlob> ranks;
  std::vector<topology::RankInfo> infos;  // of the ranks, with their addresses
  topology::Bridge bridge = topology::Bridge::Auto;
  Map map;
  // What carries frames where Map::streamed().
  process::Carrier carrier() const noexcept {
    return bridge == topology::Bridge::Ucx ? process::Carrier::Ucx : process::Carrier::Tcp;
  }
  // The number by which people know the rank in the new communicator.
  int number(size_t rank) const noexcept { return ranks[rank].number.slot; }
  std::optional<topology::Island> island;  // of this rank, where a library serves it
  bool library_goes_on = false;            // the island keeps the library's communicator that it has; its ranks decide alike
  Rollback key;                            // the job's: the mesh takes connections of peers that prove the key
};
// Collective: one exchange. Every refusal has the same text on all ranks. The text names the rank that differs or lacks something.
Agreement agree(const Invitation &invitation, const Offer &offer);

}  // namespace isthmus::comm::join
