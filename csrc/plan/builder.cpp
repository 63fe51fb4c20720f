#include "plan/builder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"

namespace isthmus::plan {

Builder::Builder(const topology::Topology &t, const Clusters &all, int me, Plan &p)
    : StepWriter(t, all, me, p),
      shared_slots(by_shared_slots(t, p.request.collective)),
      across_hosts(by_hosts(t, p.request.collective)),
      scaled(is_reduction(p.request.collective) && p.request.op == RedOp::PremulSum),
      devices(topology::has_devices(t)) {
  const bool blocks = traits(request.collective).output == Blocks::OnePerRank;
  const uint64_t output = request.bytes * (blocks ? static_cast<uint64_t>(world) : 1);
  stream = (varying || output >= request.stream_bytes) && !request.in_place;
}

namespace {
constexpr uint64_t kRounding = 64 * 1024;  // of each region of a slot to lines
}
uint64_t most_ring_bytes(uint64_t chunk_bytes, uint32_t slots) noexcept {
  return slots * (kDeviceSlotChunks * kDeviceChunks * chunk_bytes + kRounding);
}
uint64_t most_ring_chunk(uint64_t ring_bytes, uint32_t slots) noexcept {
  const uint64_t slot = ring_bytes / slots;
  return slot > kRounding ? (slot - kRounding) / (kDeviceSlotChunks * kDeviceChunks) : 0;
}

uint64_t Builder::paced(uint64_t fast, uint64_t least_chunks) noexcept {
  plan.paced = devices && !varying && request.paced_bytes > 0 && request.paced_bytes < fast;
  if (!plan.paced) return fast;
  return std::clamp(request.paced_bytes / kLine * kLine, std::min(least_chunks * request.chunk_bytes, fast), fast);
}

void Builder::choose_chunk(uint64_t regions) {
  const auto lines = [](uint64_t bytes) { return std::max(bytes / kLine * kLine, kLine); };
  // A copy to or from a device costs microseconds whatever its size.
  const uint64_t wanted = request.chunk_bytes * (devices ? kDeviceChunks : 1);
  const uint64_t most = lines((devices ? kDeviceSlotChunks : 4) * wanted / std::max<uint64_t>(regions, 1));
  uint64_t target = std::min(lines(paced(wanted, 1)), most);
  const bool far = request.far && clusters.members.size() > 1 && !devices;
  const uint32_t slots = !far                   ? std::clamp<uint32_t>(request.max_slots, 2, 64)
                         : clusters.largest > 1 ? kFarSlots
                                                : kFarSlotsAlone;
  depth = slots - 1;
  // The last stage comes a turn behind two ways, at the most.
  if (far) ahead = (slots - 2) / 2;
  if (varying) {
    plan.chunk = target;
    plan.chunks = 0;
    plan.slots = slots;
    if (!devices && !far) {
      const uint64_t fit = std::min(kRingTurn, 16 * wanted) / (std::max<uint64_t>(regions, 1) * target);
      plan.slots = static_cast<uint32_t>(std::clamp<uint64_t>(fit, std::min(slots, 4u), slots));
    }
    depth = plan.slots - 1;
    return;
  }
  const uint64_t bytes = request.bytes;
  // Who reads a slot finds the data in the writer's cache or behind it. A core draws lines out of another core's cache at less than half of the
  // rate at which it reads lines that have left the cache. So slots are larger where a few of them still overlap.
  if (others == 0 && !devices)
    target = std::min(lines(std::clamp(bytes / 4, wanted, (is_reduction(request.collective) ? 2 : 4) * wanted)), most);
  if (bytes / 64 > target) target = std::min(lines(bytes / 64 + kLine - 1), most);
  const uint64_t about = std::max<uint64_t>((bytes + target - 1) / target, 1);
  plan.chunk = lines((bytes + about - 1) / about + kLine - 1);
  const uint64_t chunks = std::max<uint64_t>((bytes + plan.chunk - 1) / plan.chunk, 1);
  if (chunks >= kMostChunks)
    fail(Code::Unsupported, "{} of {} bytes needs {} chunks of {} bytes: raise ISTHMUS_CHUNK_BYTES",
         collective_name(request.collective), bytes, chunks, plan.chunk);
  plan.chunks = static_cast<uint32_t>(chunks);
  if (plan.chunks <= slots) depth = 63;
  plan.slots = std::min(slots, plan.chunks);
}

void Builder::choose_island_chunk(SlotShare share, uint64_t blocks) {
  const auto lines = [](uint64_t bytes) { return std::max(bytes / kLine * kLine, kLine); };
  size_t multiple = 1, largest = 1;
  for (size_t g = 0; g < clusters.members.size(); ++g)
    if (clusters.library[g]) {
      multiple = std::lcm(multiple, clusters.size(g));
      largest = std::max(largest, clusters.size(g));
    }
  unit = kLine * multiple;
  // A vendor's call costs microseconds, so its chunks are larger than those that fit a processor's caches.
  // Where ranks of several islands share memory, slots lie in rings of a fixed size (most_ring_bytes).
  const uint64_t call = kDeviceChunks * kDeviceSlotChunks * request.chunk_bytes,
                 slot = shared_slots || across_hosts ? call : 2 * call;
  const uint64_t most = lines(slot * share.parts / share.of);
  const uint64_t least = std::min(lines(paced(call, 2) / blocks), most);
  const uint64_t part = std::clamp(lines(request.bytes / 64 + kLine - 1), least, most);
  const uint32_t slots = std::clamp<uint32_t>(request.max_slots, kLeastIslandSlots, 64);
  if (varying) {
    plan.chunk = std::max<uint64_t>(part / unit, 1) * unit;
    plan.chunks = 0;
    plan.slots = slots;
    depth = slots - 1;
    return;
  }
  // As few as leave no chunk shorter than that, where slots hold them.
  uint64_t about = std::max<uint64_t>(request.bytes / part, 1);
  if (request.bytes / about + unit > most) about = (request.bytes + part - 1) / part;
  // A chunk that is shorter than the others goes piece by piece, a call or two each. In islands of more than two it had better be one piece: so
  // all others are whole, and it is the little that is left. (No piece is cut in an all_gather.)
  if (largest > 2 && request.collective != Collective::AllGather && request.bytes >= unit)
    plan.chunk = std::max(request.bytes / about / unit, uint64_t{1}) * unit;
  else plan.chunk = ((request.bytes + about - 1) / about + unit - 1) / unit * unit;
  plan.chunks = static_cast<uint32_t>(std::max<uint64_t>((request.bytes + plan.chunk - 1) / plan.chunk, 1));
  if (plan.chunks >= kMostChunks)
    fail(Code::Unsupported, "{} of {} bytes needs {} chunks of {} bytes: raise ISTHMUS_CHUNK_BYTES",
         collective_name(request.collective), request.bytes, plan.chunks, plan.chunk);
  depth = plan.chunks <= slots ? 63 : slots - 1;
  plan.slots = std::min(slots, plan.chunks);
}

double bridge_time(std::span<const double> rates) noexcept {
  double least = rates.empty() ? 1 : rates[0], sum = 0;
  for (double b : rates) {
    least = std::min(least, b);
    sum += b;
  }
  return rates.size() < 2 ? 0 : std::max(1 / least, 2 * static_cast<double>(rates.size() - 1) / sum);
}

// T* is attained by any w with sum 1 and 0 <= w_i <= cap_i, where cap_i = clip((B_i T* / n - 1) / (k - 2), 0, 1). Scaling the caps by 1 / sum, which
// is at most 1, keeps every w_i within its cap. Two islands: any split attains T*.
std::vector<double> bridge_shares(std::span<const double> rates) {
  const size_t k = rates.size();
  std::vector<double> w(k, 1.0);
  if (k < 2) return w;
  const double time = bridge_time(rates);
  double sum = 0;
  for (size_t i = 0; i < k; ++i) {
    w[i] = k == 2 ? rates[i] : std::clamp((rates[i] * time - 1) / static_cast<double>(k - 2), 0.0, 1.0);
    sum += w[i];
  }
  for (double &x : w) x /= sum;
  return w;
}

// With n = 1 for all blocks and s_i for those of island i. No bridge carries less than max(s_i, 1 - s_i) one way, nor all together less than k - 1.
namespace {

struct Shares {
  std::vector<double> of;        // s_i
  double least = 0, direct = 0;  // seconds: of any way, and where every block goes straight
  Shares(std::span<const double> ranks, std::span<const double> rates) {
    double world = 0, sum = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      world += ranks[i];
      sum += rates[i];
    }
    const auto others = static_cast<double>(ranks.size() - 1);
    least = others / sum;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const double s = ranks[i] / world;
      of.push_back(s);
      least = std::max(least, std::max(s, 1 - s) / rates[i]);
      direct = std::max(direct, std::max(others * s, 1 - s) / rates[i]);
    }
  }
};
constexpr double kNearDirect = 1.01;  // the direct way is better where it is so near: it has a hop less

// What the islands do themselves in `time`, as much as they can: x_i s_i costs a bridge k - 1 of each byte one way, and what others do for it 1. An
// island that does not do all for itself has no room for others.
Passing within(double time, const Shares &shares, std::span<const double> rates, double &room) {
  const auto others = static_cast<double>(rates.size() - 1);
  Passing out;
  room = 0;
  for (size_t i = 0; i < rates.size(); ++i) {
    const double s = shares.of[i], carries = rates[i] * time, x = std::clamp((carries / s - 1) / (others - 1), 0.0, 1.0);
    out.direct.push_back(x);
    out.relays.push_back(x < 1 ? 0 : std::max(carries - s * others, 0.0));
    room += out.relays.back();
  }
  if (room > 0)
    for (double &r : out.relays) r /= room;
  return out;
}
Passing all_direct(size_t islands) { return {std::vector<double>(islands, 1.0), {}}; }

}  // namespace

// What an island passes on costs its bridge k - 2 of each byte. All bytes that leave bridges are k - 1, for which there is room in the least time.
Passing gather_passing(std::span<const double> ranks, std::span<const double> rates) {
  if (rates.size() < 3) return all_direct(rates.size());
  const Shares shares(ranks, rates);
  double room = 0;
  Passing out = within(shares.least, shares, rates, room);
  return shares.direct <= kNearDirect * shares.least || room <= 0 ? all_direct(rates.size()) : out;
}

// Who makes a sum for another island gets k - 1 contributions of each byte, one from that island too: so an island sends 1 - x_i s_i. The least time
// in which there is room for that is between the least of any way and that of the direct one.
Passing scatter_passing(std::span<const double> ranks, std::span<const double> rates) {
  const size_t k = rates.size();
  if (k < 3) return all_direct(k);
  const Shares shares(ranks, rates);
  const auto fits = [&](double time) {
    double room = 0, needed = 0;
    const Passing p = within(time, shares, rates, room);
    for (size_t i = 0; i < k; ++i) {
      const double carries = rates[i] * time, s = shares.of[i];
      if (carries < s || carries < 1 - p.direct[i] * s) return false;
      needed += (1 - p.direct[i]) * s * static_cast<double>(k - 1);
    }
    return needed <= room;
  };
  double low = shares.least, high = shares.direct;
  for (int halvings = 0; halvings < 40; ++halvings) {
    const double middle = (low + high) / 2;
    (fits(middle) ? high : low) = middle;
  }
  double room = 0;
  Passing out = within(high, shares, rates, room);
  return shares.direct <= kNearDirect * high || room <= 0 ? all_direct(k) : out;
}

std::vector<Range> domains_of(const Builder &b, ptrdiff_t without) {
  const size_t k = b.clusters.members.size();
  std::vector<double> rates;
  std::vector<size_t> owners;
  for (size_t g = 0; g < k; ++g)
    if (static_cast<ptrdiff_t>(g) != without) {
      owners.push_back(g);
      rates.push_back(b.topology.flat || g >= b.topology.weights.size() ? 1.0 : b.topology.weights[g]);
    }
  std::vector<Range> out(k);
  const std::vector<double> shares = bridge_shares(rates);
  const uint64_t units = b.plan.chunk / b.unit;
  double sum = 0;
  uint64_t at = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    sum += shares[i];
    const uint64_t end = i + 1 == owners.size()
                             ? units
                             : std::min(units, static_cast<uint64_t>(std::floor(sum * static_cast<double>(units) + 0.5)));
    out[owners[i]] = {at * b.unit, std::max(at, end) * b.unit};
    at = std::max(at, end);
  }
  return out;
}

}  // namespace isthmus::plan
