// Step 1 of joining: what this rank has.
#pragma once

#include <memory>

#include "ccl/island_ccl.hpp"
#include "comm/blob.hpp"
#include "comm/join/device.hpp"
#include "comm/join/invitation.hpp"
#include "comm/join/rollback.hpp"
#include "rank/succession.hpp"

namespace isthmus::comm::join {

struct Offer {
  RankBlob blob;  // what the other ranks are told; blob.trouble: what this rank lacks
  Device device;
  std::shared_ptr<ccl::Library> library;  // null: none
  rank::Estate estate;                    // of the epoch that ends with the new one
  Rollback index, mailbox;                // given to the Rank, once there is one
};
// Does not throw where this rank lacks something: the other ranks must hear of the lack first, by blob.trouble.
Offer make_offer(const Invitation &invitation);

uint64_t mailbox_bytes(const Invitation &invitation);

}  // namespace isthmus::comm::join
