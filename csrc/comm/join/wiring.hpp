// Step 3 of joining: connections with the other ranks, and the streams of this rank's device.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "comm/join/agreement.hpp"
#include "comm/join/offer.hpp"
#include "comm/join/vote.hpp"
#include "collective/device_executor.hpp"

namespace isthmus::comm::join {

struct Wiring {
  std::vector<bootstrap::Peer *> processes;        // by rank; null: this process
  std::vector<std::shared_ptr<const void>> holds;  // of the processes, so that nobody lets go of one
  collective::DeviceExecutorSetup served;          // this rank's device or library, and its streams
  // Raised when another rank says that it has failed. A rank that waits inside a library may not hear of the failure otherwise.
  std::shared_ptr<const std::atomic<bool>> failed_elsewhere;
  // What the ballots of all ranks have said.
  bool all_share_memory = true;  // where they are of one host
  uint64_t least_staging = 0;
  uint64_t round_trip_us = 0;  // by TCP, of the two that are farthest from each other; 0: no two go by TCP
  bootstrap::Blob library_id;  // of this rank's island
};
// Collective: one vote, the proof that all ranks are connected and listen.
Wiring wire(const Invitation &invitation, const Offer &offer, const Agreement &agreement);

// Connects this process with those of all other ranks, as `map` says. `processes`, by rank: null where that has failed, and of this process.
enum class Reach : uint8_t { MemoryToo, TcpAlone };
void connect(const Invitation &invitation, const Offer &offer, const Agreement &agreement, const Map &map, Reach most,
             std::vector<bootstrap::Peer *> &processes, Attempts &attempt);
// Behind all connect() of a step: waits for the other side of those links that need it.
void await_links(const Invitation &invitation, const Agreement &agreement, std::span<bootstrap::Peer *const> processes);

}  // namespace isthmus::comm::join
