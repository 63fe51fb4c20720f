// Rings and receive slots at places that devices of other ranks know.
#include <algorithm>

#include "comm/join/seat.hpp"

namespace isthmus::comm::join {
namespace {

uint64_t slots_bytes(const RingsSetup &setup, size_t q) {
  return (setup.sharing.size() - 1) * setup.places[q].slots * setup.part;
}

// Where this rank's device finds the rings, by rank: null, of a rank that shares no memory with this one. Empty: the device does not reach all
// of the other rings.
std::vector<std::byte *> reach_rings(rank::Rank &local, const RingsSetup &setup) {
  if (setup.device.host()) return {};
  std::vector<std::byte *> rings(setup.places.size());
  for (const int rank : setup.sharing) {
    const auto q = static_cast<size_t>(rank);
    const RingPlace &place = setup.places[q];
    std::byte *const there =
        asked<std::byte *>(setup.device, setup.deadline,
                           [context = setup.context, on = setup.device, process = local.peers()[q].process,
                            hold = local.peers()[q].hold, offset = place.offset, bytes = place.room] {
                             return context->devices().reach(*on.runtime, on.number, process, offset, bytes);
                           });
    if (!there) return {};
    rings[q] = there;
  }
  return rings;
}

// By rank: the receive slots that the rank keeps for this rank.
std::vector<messages::TheirSlots> slots_there(const rank::Rank &local, const RingsSetup &setup,
                                              const std::vector<std::byte *> &rings) {
  std::vector<messages::TheirSlots> theirs(setup.places.size());
  const auto place_of = [&](int rank) {
    return static_cast<int>(std::find(setup.sharing.begin(), setup.sharing.end(), rank) - setup.sharing.begin());
  };
  const int mine = place_of(local.id().rank);
  for (const int rank : setup.sharing) {
    const auto q = static_cast<size_t>(rank);
    const RingPlace &place = setup.places[q];
    const uint64_t at = place.bytes + messages::slots_of(place_of(rank), mine) * place.slots * setup.part;
    theirs[q] = {static_cast<uint32_t>(place.slots), rings.empty() ? nullptr : rings[q] + at};
  }
  return theirs;
}

// Rings of up to `bytes` are at their fixed places on all ranks that share memory with this one. `rings`: where this rank's device finds the rings,
// by rank, or empty.
void fix_places(rank::Rank &local, uint64_t bytes, std::vector<std::byte *> rings) {
  local.collectives().memory().fix(bytes);
  collective::DeviceExecutor *const executor = local.collectives().device().executor();
  if (executor && !rings.empty()) executor->reaches(std::move(rings));
}

void guard(rank::Rank &local, const RingsSetup &setup) {
  std::vector<std::span<std::byte>> slots, closed;
  for (const int rank : setup.sharing) {
    const auto q = static_cast<size_t>(rank);
    std::byte *const at = local.peers()[q].arena + setup.places[q].offset;
    slots.emplace_back(at, setup.places[q].bytes);
    if (const uint64_t bytes = slots_bytes(setup, q)) closed.emplace_back(at + setup.places[q].bytes, bytes);
  }
  local.collectives().memory().guard(std::move(slots));
  local.messages().slots().guard(std::move(closed));
}

}  // namespace

void fix_rings(rank::Rank &local, Terms &terms, const RingsSetup &setup) {
  const auto &places = setup.places;
  process::Context &context = *setup.context;
  const auto place_of = [&](int q) -> const RingPlace & { return places[static_cast<size_t>(q)]; };
  uint64_t bytes = UINT64_MAX;
  for (const int q : setup.sharing) bytes = std::min(bytes, place_of(q).bytes);
  if (bytes == 0) {
    terms.lose(
        context, local.id().name, Terms::kNoRing,
        formatted("no ring in the staging memory at a place that devices know (each rank needs {} bytes, of at most 1/16 of "
                  "ISTHMUS_STAGING_BYTES, with all others at most half of it; smaller with a smaller ISTHMUS_CHUNK_BYTES): "
                  "processors copy what the devices of other ranks would read, two copies more of each byte",
                  plan::most_ring_bytes(terms.chunk_bytes, plan::kDeviceSlots)));
    local.succession().give_back_ring();
    return fix_places(local, 0, {});  // some rank has no room
  }
  std::vector<std::byte *> rings = reach_rings(local, setup);
  const bool all = !rings.empty();
  const int fewest = *std::min_element(setup.sharing.begin(), setup.sharing.end(),
                                       [&](int a, int b) { return place_of(a).slots < place_of(b).slots; });
  terms.fixed_rings = true;
  terms.recv_slots = place_of(fewest).slots;
  terms.ring_bytes = bytes;
  terms.reach = all ? bytes : 0;
  if (terms.recv_slots == 0 && setup.sharing.size() > 1)
    terms.lose(context, local.id().name, Terms::kNoRecvSlots,
               formatted("no receive slots for messages on rank {}, whose staging memory has no room for them "
                         "(ISTHMUS_STAGING_BYTES): processors copy messages of device memory, two copies more of each byte",
                         local.id().number(fewest)));
  const RingPlace &mine = place_of(local.id().rank);
  local.messages().slots().fix(mine.offset + mine.bytes, static_cast<uint32_t>(mine.slots));
  local.messages().sends().fix(slots_there(local, setup, rings));
  fix_places(local, bytes, std::move(rings));
  if (all && setup.guard) guard(local, setup);
}

}  // namespace isthmus::comm::join
