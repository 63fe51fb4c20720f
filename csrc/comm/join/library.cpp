#include "comm/join/library.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "ccl/island_ccl.hpp"
#include "net/siphash.hpp"

namespace isthmus::comm::join {
namespace {

// Whether waiting for the island's ranks is in vain. The function holds no context: a join that never comes back must not keep one alive.
std::function<bool()> hopeless(const Invitation &invitation, const Wiring &wiring, const topology::Island &island) {
  return [while_there = std::weak_ptr(invitation.context), failed_elsewhere = wiring.failed_elsewhere,
          processes = wiring.processes, members = island.ranks] {
    const auto there = while_there.lock();
    return !there || failed_elsewhere->load() || std::any_of(members.begin(), members.end(), [&](int q) {
      const auto *peer = processes[static_cast<size_t>(q)];
      return peer && peer->lost.load();
    });
  };
}

}  // namespace

void join_library(const Invitation &invitation, const Offer &offer, const Agreement &agreement, const Terms &terms,
                  Wiring &wiring, Attempts &attempt) {
  const topology::Island &island = *agreement.island;
  collective::DeviceExecutorSetup &served = wiring.served;
  const std::string versions = topology::unequal_versions(agreement.map.topology, island);
  if (!versions.empty() && invitation.rank == island.ranks[0] && !invitation.parent)
    ISTHMUS_WARN("communicator '{}': {} of one island: libraries of several versions may not understand each other",
                 invitation.name, versions);
  served.library = offer.library;
  served.ranks = island.ranks;
  // Sums of islands take turns through one place a slot, each of a slot's size; behind them lies a chunk that is gathered (islands.cpp).
  if (!offer.device.host()) served.first_scratch = uint64_t{plan::kDeviceSlots + 1} * 16 * terms.chunk_bytes;
  if (agreement.library_goes_on) {
    served.communicator = offer.estate.library.communicator;
    served.place = offer.estate.library.place;
    return;
  }
  attempt([&] {
    try {
      served.communicator = asked<std::unique_ptr<ccl::IslandCommunicator>>(
          offer.device, invitation.deadline,
          [library = offer.library, id = wiring.library_id,
           position = agreement.map.topology.index_of[static_cast<size_t>(invitation.rank)],
           size = static_cast<int>(island.ranks.size()), deadline = Deadline(0.9 * early(invitation.deadline)),
           in_vain = hopeless(invitation, wiring, island), stream = served.stream] {
            return library->join({id, position, size, deadline, in_vain}, stream);
          });
      served.place.made = net::siphash128(agreement.ranks[0].key, wiring.library_id);
      served.place.position = static_cast<uint32_t>(served.communicator->rank());
      served.place.size = static_cast<uint32_t>(island.ranks.size());
    } catch (const Error &e) {
      for (const int q : island.ranks)
        if (const auto *peer = wiring.processes[static_cast<size_t>(q)]; peer && peer->lost.load())
          throw Error(Code::PeerLost, formatted("{}; rank {} is gone: {}", e.text(),
                                                agreement.number(static_cast<size_t>(q)), peer->lost_text()));
      if (versions.empty()) throw;
      throw Error(e.code(), formatted("{}; {}: install one version on all", e.text(), versions));
    }
  });
  const Status &trouble = attempt.trouble();
  if (trouble.ok() || trouble.code == Code::Timeout) return;
  for (const int q : island.ranks) {
    const auto at = static_cast<size_t>(q);
    if (q != invitation.rank)
      invitation.context->control().tell_failure(wiring.processes[at], agreement.ranks[at].index, agreement.ranks[0].epoch,
                                                 {trouble});
  }
}

std::string served_by(const Offer &offer, const Agreement &agreement) {
  if (!agreement.island) return {};
  return formatted(", served by {} {} ({}{})", offer.library->family(), offer.library->version(), offer.library->path(),
                   agreement.library_goes_on ? ", as before" : "");
}

}  // namespace isthmus::comm::join
