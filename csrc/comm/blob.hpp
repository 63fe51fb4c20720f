// What each rank says about itself when a communicator is made, and how the bytes are packed. Parsing is bounded. Bytes that cannot be read are
// Error(Mismatch).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/mesh.hpp"
#include "collective/succession.hpp"
#include "topology/topology.hpp"

namespace isthmus::comm {

// Numbers for people: see comm/numbering.hpp.
struct SlotOffer {
  int32_t slot = 0, slots = 1;  // the rank's, and how many there are
  int32_t was = -1;             // its slot in the communicator of which this one is made; -1: it is new there
  bool keeps = false;           // it asks that ranks keep their slots
};

struct RankBlob {
  uint32_t protocol = 0;
  bootstrap::Endpoint endpoint;
  topology::RankInfo info;
  std::string settings;  // those on which all ranks must agree, as text
  std::string name;
  std::string members;                   // whom the rank takes for the members; all ranks must say the same
  Status trouble;                        // not OK: this rank cannot take part, and why
  uint32_t index = 0, epoch = 0;         // of the rank in its process; a random number (rank 0's counts)
  uint64_t mailbox = 0;                  // offset in the arena
  std::vector<std::byte> library_terms;  // ccl::Library::terms() of the library that serves the rank
  std::vector<std::byte> ucx;            // how UCX reaches the rank's process, where it is the bridge
  int64_t leader_bytes = -1;             // what the rank's settings say of the leader exchange; -1: nothing
  bootstrap::Bytes16 key{};              // rank 0's is the job key
  int32_t before = -1;                   // the rank in the epoch that ends with this one; -1: there is none
  bool quiet = false;                    // nothing of this rank comes to memory of that epoch any more
  collective::LibraryPlace library;      // in the library's communicator of that epoch
  SlotOffer number;                      // the rank's number for people
};

std::vector<std::byte> pack(const RankBlob &blob);
RankBlob unpack(std::span<const std::byte> bytes, int rank);
// The settings that two ranks must agree on, and do not: "ISTHMUS_CHUNK_BYTES is 4096 on rank 0 and 8192 on rank 2".
std::string differing(const RankBlob &first, const RankBlob &other);

}  // namespace isthmus::comm
