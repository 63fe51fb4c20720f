#include "comm/terms.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "link/memory.hpp"

namespace isthmus::comm {

namespace {

uint64_t most_in_a_process(std::span<const RankBlob> ranks) {
  std::map<std::pair<std::string_view, std::string_view>, uint64_t> many;
  uint64_t most = 1;
  for (const RankBlob &r : ranks) most = std::max(most, ++many[{r.info.host, r.info.process}]);
  return most;
}

}  // namespace

void Terms::lose(process::Context &context, const std::string &name, Lost path, std::string what) {
  if (!context.staging().note_lost(path))
    ISTHMUS_WARN("communicator '{}': {}. It holds for others like it; topology() says which", name, what);
  lost.push_back(std::move(what));
}

// A copy of a device costs some 10 us beside its bytes, and a gate before it as much: on an H200, 64 MiB between two ranks of one host take two
// thirds of the time with slots of 4 MiB that they take with slots of 1 MiB. What crosses a network had better be cut shorter, or too little of it
// is on the way at the same time.
//
// Slots of host ranks are some dozens of chunks. Slots that devices
// copy through, and slots of islands, are up to 170, beside what messages between processes pass through. Where devices share memory, chunks are no
// longer than the rings at fixed places allow: long ones would cost the rings, and with them two copies of each byte. Ranks of one process have one
// staging memory, into which one operation of all of them fits.
void Terms::choose_chunk(process::Context &context, std::span<const RankBlob> ranks, uint64_t asked, uint64_t staging,
                         size_t sharing) {
  constexpr uint64_t kDefault = 128 * 1024, kOfDevices = 512 * 1024;
  constexpr uint64_t kLeastWithRing =
      16 * 1024;  // with less staging memory than that takes, chunks are worth more than rings
  const auto any = [&](auto is) { return std::any_of(ranks.begin(), ranks.end(), is); };
  const bool on_devices = any([](const RankBlob &r) { return r.info.device != "host"; });
  const bool devices_or_libraries = on_devices || any([](const RankBlob &r) { return !r.info.ccl.empty(); });
  const uint64_t messages = (ranks.size() - 1) * 3 * link::ByteRing::kLeastCapacity / 2;
  uint64_t most = devices_or_libraries ? (staging - std::min(messages, staging / 8 * 7)) / (192 * most_in_a_process(ranks))
                                       : staging / 64;
  const uint64_t with_ring = plan::most_ring_chunk(most_fixed_ring(staging), plan::kDeviceSlots);
  if (on_devices && sharing > 1 && with_ring >= kLeastWithRing) most = std::min(most, with_ring);
  const uint64_t least = asked != 0 ? asked : kDefault;
  const uint64_t wanted = asked == 0 && on_devices && sharing > 1 && sharing == ranks.size() ? kOfDevices : least;
  chunk_bytes = std::min(wanted, std::max<uint64_t>(most / 4096 * 4096, 4096));
  if (chunk_bytes < least)
    lose(context, ranks[0].name, kSmallChunks,
         formatted("chunks of {} bytes and not {} (ISTHMUS_CHUNK_BYTES), because the least staging memory of its "
                   "processes is {} bytes (ISTHMUS_STAGING_BYTES): large operations take more steps",
                   chunk_bytes, least, staging));
}

// A rank's ring is kFarSlots chunks then, each up to four times the setting; a quarter of the staging memory holds those of a process's ranks. Where
// ranks work on devices, slots are fewer and longer, and nothing of this holds.
void Terms::choose_far(process::Context &context, const std::string &name, uint64_t round_trip, uint64_t from_us,
                       uint64_t staging, std::span<const RankBlob> ranks) {
  round_trip_us = round_trip;
  const bool on_host = std::all_of(ranks.begin(), ranks.end(), [](const RankBlob &r) { return r.info.device == "host"; });
  if (!on_host || round_trip == 0 || round_trip < from_us) return;
  const uint64_t needed = 4 * plan::kFarSlots * 4 * chunk_bytes * most_in_a_process(ranks);
  far = needed <= staging;
  if (!far)
    lose(context, name, kShallow,
         formatted("few chunks under way although a round trip takes {} us: {} bytes of staging memory are needed, and the "
                   "least of its processes is {} (ISTHMUS_STAGING_BYTES, ISTHMUS_CHUNK_BYTES)",
                   round_trip, needed, staging));
}

// The calls for a chunk of a device, and of a library, cost some 30 us together. A power of two, so that rates which were measured anew cut chunks as before:
// a library's order of a sum may depend on how long they are. Over a long way short chunks would leave too little under way.
void Terms::choose_pace(const topology::Topology &topology) {
  constexpr double kChunkSeconds = 1e-3;
  const double bytes = std::min(topology::slowest_bridge(topology) * kChunkSeconds, 1e12);
  paced_bytes = std::bit_floor(static_cast<uint64_t>(bytes));
}

// Settings go before profiles. Of several numbers the least counts, so ranks agree although their settings say different numbers.
void Terms::choose_leader_bytes(std::span<const RankBlob> ranks, const topology::Topology &topology) {
  int64_t bytes = -1;
  for (const RankBlob &rank : ranks)
    if (rank.leader_bytes >= 0) bytes = bytes < 0 ? rank.leader_bytes : std::min(bytes, rank.leader_bytes);
  leader_bytes_from = plan::LeaderBytesFrom::Setting;
  if (bytes < 0) {
    bytes = topology::measured_leader_bytes(topology);
    leader_bytes_from = plan::LeaderBytesFrom::Profile;
  }
  if (bytes < 0) {
    bytes = plan::kDefaultLeaderBytes;
    leader_bytes_from = plan::LeaderBytesFrom::Default;
  }
  leader_bytes = std::min(static_cast<uint64_t>(bytes), plan::most_leader_bytes(chunk_bytes));
}

}  // namespace isthmus::comm
