#include "plan/builder.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"

namespace isthmus::plan {

Range piece_of(Range whole, size_t parts, size_t index) noexcept {
  const uint64_t lines = (whole.size() + kLine - 1) / kLine;
  const uint64_t from = lines / parts * index + lines % parts * index / parts;
  const uint64_t to = lines / parts * (index + 1) + lines % parts * (index + 1) / parts;
  return {whole.begin + std::min(from * kLine, whole.size()), whole.begin + std::min(to * kLine, whole.size())};
}

std::vector<Range> complement(uint64_t length, std::vector<Range> holes) {
  std::vector<Range> out;
  uint64_t at = 0;
  for (const Range &h : holes) {
    if (h.empty()) continue;
    if (h.begin > at) out.push_back({at, h.begin});
    at = h.end;
  }
  if (at < length) out.push_back({at, length});
  return out;
}

Clusters::Clusters(const topology::Topology &t) : of(t.ranks.size()), at(t.ranks.size()) {
  for (const auto &g : t.groups) library.push_back(!g.ccl.empty());
  if (t.flat) {
    members.emplace_back();
    library.assign(1, false);
    for (const auto &g : t.groups) {
      members[0].insert(members[0].end(), g.ranks.begin(), g.ranks.end());
      group_ends.push_back(static_cast<uint32_t>(members[0].size()));
    }
  } else {
    for (const auto &g : t.groups) members.push_back(g.ranks);
  }
  for (size_t g = 0; g < members.size(); ++g) {
    largest = std::max(largest, members[g].size());
    for (size_t i = 0; i < members[g].size(); ++i) {
      of[static_cast<size_t>(members[g][i])] = g;
      at[static_cast<size_t>(members[g][i])] = i;
    }
  }
}

bool by_shared_slots(const topology::Topology &t, Collective c) noexcept {
  return !t.flat && t.groups.size() > 1 && topology::one_memory(t) &&
         (c == Collective::Broadcast || c == Collective::AllGather || c == Collective::AllReduce);
}

Builder::Builder(const topology::Topology &t, const Clusters &all, int me, Plan &p)
    : topology(t),
      clusters(all),
      plan(p),
      request(p.request),
      rank(me),
      world(t.size()),
      cluster(all.of[static_cast<size_t>(me)]),
      position(all.at[static_cast<size_t>(me)]),
      members(all.members[cluster]),
      count(members.size()),
      others(all.members.size() - 1),
      library(all.library[cluster]),
      shared_slots(by_shared_slots(t, p.request.collective)),
      varying(is_varying(p.request.collective)),
      scaled(is_reduction(p.request.collective) && p.request.op == RedOp::PremulSum),
      devices(topology::has_devices(t)),
      ratio(dtype_size(accumulator(p.request.dtype)) / dtype_size(p.request.dtype)) {
  const bool blocks = traits(request.collective).out == Blocks::OnePerRank;
  const uint64_t output = request.bytes * (blocks ? static_cast<uint64_t>(world) : 1);
  stream = (varying || output >= request.stream_bytes) && !request.in_place;
}

uint64_t most_ring_bytes(uint64_t chunk_bytes, uint32_t slots) noexcept {
  constexpr uint64_t kRounding = 64 * 1024;  // of each region to lines
  return slots * (kDeviceSlotChunks * kDeviceChunks * chunk_bytes + kRounding);
}

void Builder::choose_chunk(uint64_t regions) {
  const auto lines = [](uint64_t bytes) { return std::max(bytes / kLine * kLine, kLine); };
  // A copy to or from a device costs microseconds whatever its size.
  const uint64_t wanted = request.chunk_bytes * (devices ? kDeviceChunks : 1);
  const uint64_t most = lines((devices ? kDeviceSlotChunks : 4) * wanted / std::max<uint64_t>(regions, 1));
  uint64_t target = std::min(lines(wanted), most);
  const uint32_t slots = std::clamp<uint32_t>(request.max_slots, 2, 64);
  depth = slots - 1;
  if (varying) {
    plan.chunk = target;
    plan.chunks = 0;
    plan.slots = slots;
    if (!devices) {
      const uint64_t fit = std::min(kRingTurn, 16 * wanted) / (std::max<uint64_t>(regions, 1) * target);
      plan.slots = static_cast<uint32_t>(std::clamp<uint64_t>(fit, std::min(slots, 4u), slots));
    }
    depth = plan.slots - 1;
    return;
  }
  const uint64_t bytes = request.bytes;
  // Who reads a slot finds it in the writer's cache or behind it. A core draws lines out of another's cache at less than half of the rate at
  // which it reads those that have left it, so slots are larger where a few of them still overlap.
  if (others == 0 && !devices)
    target = std::min(lines(std::clamp(bytes / 4, wanted, (is_reduction(request.collective) ? 2 : 4) * wanted)), most);
  if (bytes / 64 > target) target = std::min(lines(bytes / 64 + kLine - 1), most);
  const uint64_t about = std::max<uint64_t>((bytes + target - 1) / target, 1);
  plan.chunk = lines((bytes + about - 1) / about + kLine - 1);
  const uint64_t chunks = std::max<uint64_t>((bytes + plan.chunk - 1) / plan.chunk, 1);
  if (chunks >= (uint64_t{1} << kValueBits) - 64)
    fail(Code::Unsupported, "{} of {} bytes needs {} chunks of {} bytes: raise ISTHMUS_CHUNK_BYTES",
         collective_name(request.collective), bytes, chunks, plan.chunk);
  plan.chunks = static_cast<uint32_t>(chunks);
  if (plan.chunks <= slots) depth = 63;
  plan.slots = std::min(slots, plan.chunks);
}

bool Builder::libraries() const noexcept {
  return std::find(clusters.library.begin(), clusters.library.end(), true) != clusters.library.end();
}

void Builder::choose_island_chunk(uint64_t regions) {
  const auto lines = [](uint64_t bytes) { return std::max(bytes / kLine * kLine, kLine); };
  size_t multiple = 1, largest = 1;
  for (size_t g = 0; g < clusters.members.size(); ++g)
    if (clusters.library[g]) {
      multiple = std::lcm(multiple, clusters.size(g));
      largest = std::max(largest, clusters.size(g));
    }
  const uint64_t unit = kLine * multiple;
  // A vendor's call costs microseconds, so its chunks are larger than those that fit a processor's caches.
  // Where all share memory, slots lie in rings of a fixed size (most_ring_bytes).
  const uint64_t least = lines(kDeviceChunks * kDeviceSlotChunks * request.chunk_bytes);
  const uint64_t target = std::clamp(request.bytes / 64, least, shared_slots ? least : 2 * least);
  const uint64_t part = lines(target / std::max<uint64_t>(regions, 1));
  const uint64_t about = std::max<uint64_t>((request.bytes + part - 1) / part, 1);
  // A chunk that is shorter than the others goes piece by piece, a call or two each. In groups of more than two it had better be one piece: so
  // all others are whole, and it is the little that is left. (No piece is cut in an all_gather.)
  if (largest > 2 && request.collective != Collective::AllGather && request.bytes >= unit)
    plan.chunk = std::max(request.bytes / about / unit, uint64_t{1}) * unit;
  else plan.chunk = ((request.bytes + about - 1) / about + unit - 1) / unit * unit;
  plan.chunks = static_cast<uint32_t>(std::max<uint64_t>((request.bytes + plan.chunk - 1) / plan.chunk, 1));
  if (plan.chunks >= (uint64_t{1} << kValueBits) - 64)
    fail(Code::Unsupported, "{} of {} bytes needs {} chunks of {} bytes: raise ISTHMUS_CHUNK_BYTES",
         collective_name(request.collective), request.bytes, plan.chunks, plan.chunk);
  const uint32_t slots = std::clamp<uint32_t>(request.max_slots, kLeastIslandSlots, 64);
  depth = plan.chunks <= slots ? 63 : slots - 1;
  plan.slots = std::min(slots, plan.chunks);
}

std::vector<int> Builder::outside() const {
  std::vector<int> out;
  for (size_t h = 0; h <= others; ++h)
    if (h != cluster) out.insert(out.end(), clusters.members[h].begin(), clusters.members[h].end());
  return out;
}

// My place among the ranks outside of that cluster: the ranks before me, without its own if they come first.
int Builder::taker(size_t other) const {
  size_t place = position;
  for (size_t h = 0; h < cluster; ++h)
    if (h != other) place += clusters.size(h);
  return at(other, place % clusters.size(other));
}

Span Builder::input(uint32_t block, uint64_t at) { return {Memory::Input, -1, block, at, 0, false}; }
Span Builder::output(uint32_t block, uint64_t at) { return {Memory::Output, -1, block, at, 0, false}; }
Span Builder::ring(int owner, uint64_t at) const { return {Memory::Ring, owner == rank ? -1 : owner, 0, at, 0, false}; }
Span Builder::scratch(uint64_t at, bool partial) { return {Memory::Scratch, -1, 0, at, 0, partial}; }

Span Builder::contribution(size_t of_cluster, Span s) const {
  if (clusters.library[of_cluster])
    s.weight = 1u << asked_of_library(request, clusters.size(of_cluster), others == 0).halvings;
  return s;
}

Span Builder::user(Span s) const {
  s.stride = s.memory == Memory::Input || s.memory == Memory::Output ? plan.chunk : 0;
  return s;
}

Extent Builder::extent(Memory of, uint32_t block, Range r) const { return {of, block, r.begin, plan.chunk, r.size()}; }

Span Builder::device(uint64_t at) { return {Memory::Device, -1, 0, at, 0, false}; }
uint64_t Builder::need_device(uint64_t bytes) {
  const uint64_t at = plan.device_bytes;
  plan.device_bytes += (bytes + kLine - 1) / kLine * kLine;
  return at;
}
uint64_t Builder::need_scratch(uint64_t bytes) {
  const uint64_t at = plan.scratch_stride;
  plan.scratch_stride += (bytes + kLine - 1) / kLine * kLine;
  return at;
}
void Builder::need_ring(uint64_t bytes) { plan.slot_bytes = std::max(plan.slot_bytes, bytes); }

void Builder::stage(const char *name, uint32_t skew) {
  on_device_ = false;
  plan.host.push_back({name, skew, static_cast<uint32_t>(plan.steps.size()), 0, false});
}
void Builder::device_stage(const char *name, uint32_t skew, bool beside) {
  on_device_ = true;
  plan.device.push_back({name, skew, static_cast<uint32_t>(plan.steps.size()), 0, beside});
}
Step &Builder::step(StepKind kind) {
  ++(on_device_ ? plan.device : plan.host).back().steps;
  plan.steps.emplace_back().kind = kind;
  return plan.steps.back();
}

void Builder::move(const Extent &e, Span from, Span to, bool scale, bool streamed) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Move);
  s.extent = e;
  s.dst = user(to);
  s.scaled = scale;
  s.stream = streamed;
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = 1;
  plan.sources.push_back(user(from));
}

void Builder::reduce(const Extent &e, const std::vector<Span> &from, const std::vector<uint32_t> &ends, Span to,
                     bool partial, const Span *second, bool streamed) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Reduce);
  s.extent = e;
  s.dst = user(to);
  s.partial = partial;
  s.divisor = partial ? 1 : divisor_of(request.op, world);
  if (second) {
    s.copy = user(*second);
    s.has_copy = true;
    s.stream = streamed;
  }
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = static_cast<uint32_t>(from.size());
  for (const Span &f : from) plan.sources.push_back(user(f));
  // Groups of one source each, or one group of all, add in the plain order.
  if (ends.size() > 1 && ends.size() < from.size()) {
    s.group = static_cast<uint32_t>(plan.group_ends.size());
    s.groups = static_cast<uint32_t>(ends.size());
    plan.group_ends.insert(plan.group_ends.end(), ends.begin(), ends.end());
  }
}

void Builder::send(int peer, const Extent &e, Span from) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Send);
  s.peer = peer;
  s.extent = e;
  s.partial = from.partial;
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = 1;
  plan.sources.push_back(user(from));
}
void Builder::recv(int peer, const Extent &e, Span to) {
  if (e.length == 0) return;
  Step &s = step(StepKind::Recv);
  s.peer = peer;
  s.extent = e;
  s.partial = to.partial;
  s.dst = user(to);
}
void Builder::send_token(int peer, Extent e, Span from) {
  if (e.length == 0) return;
  e.length = std::min(e.length, kTokenBytes);
  send(peer, e, from);
  plan.steps.back().token = true;
}
void Builder::recv_token(int peer, Extent e, Span to) {
  if (e.length == 0) return;
  e.length = std::min(e.length, kTokenBytes);
  recv(peer, e, to);
  plan.steps.back().token = true;
}

void Builder::call(IslandCall call, When when, Extent e, Span from, Span to, int root) {
  if (when == When::PartChunk) {
    const uint64_t short_one = request.bytes % plan.chunk;
    e.length = std::min(e.length, short_one - std::min(e.base, short_one));
  }
  if (e.length == 0 || (when == When::FullChunk && request.bytes < plan.chunk)) return;
  Step &s = step(StepKind::Ccl);
  s.call = call;
  if (reduces(call)) {
    const Asked asked = asked_of_library(request, count, others == 0);
    s.op = asked.op;
    s.halvings = asked.halvings;
  }
  s.when = when;
  s.peer = root;
  s.extent = e;
  s.dst = user(to);
  s.source = static_cast<uint32_t>(plan.sources.size());
  s.sources = 1;
  plan.sources.push_back(user(from));
}

void Builder::taken() { step(StepKind::Taken); }

void Builder::post(uint8_t counter) {
  Step &s = step(StepKind::Post);
  s.counter = counter;
  s.mul = 1;
  s.add = 1;
}
void Builder::wait(int peer, uint8_t counter) {
  Step &s = step(StepKind::Wait);
  s.peer = peer;
  s.counter = counter;
  s.mul = 1;
  s.add = 1;
}
void Builder::wait(int peer, uint8_t counter, const Extent &guard) {
  if (guard.length == 0) return;
  wait(peer, counter);
  plan.steps.back().guarded = true;
  plan.steps.back().extent = guard;
}
void Builder::wait_reuse(int peer, uint8_t counter) {
  if (!reuses()) return;
  wait(peer, counter);
  plan.steps.back().add = 1 - static_cast<int64_t>(plan.slots);
}
void Builder::wait_reuse(int peer, uint8_t counter, const Extent &guard) {
  if (!reuses() || guard.length == 0) return;
  wait(peer, counter, guard);
  plan.steps.back().add = 1 - static_cast<int64_t>(plan.slots);
}

void Builder::finish() {
  for (auto *list : {&plan.host, &plan.device}) {
    std::erase_if(*list, [](const Stage &s) { return s.steps == 0; });
    for (const Stage &s : *list) plan.max_skew = std::max(plan.max_skew, s.skew);
  }
  const auto slot = [](const Span &s) { return s.memory == Memory::Ring; };
  for (const Stage &stage : plan.host)
    for (uint32_t i = stage.step; i < stage.step + stage.steps; ++i) {
      const Step &s = plan.steps[i];
      bool touches = slot(s.dst) || (s.has_copy && slot(s.copy));
      for (uint32_t j = 0; j < s.sources; ++j) touches = touches || slot(plan.sources[s.source + j]);
      plan.host_in_slots = plan.host_in_slots || touches;
    }
  plan.uses_links = plan.sizes_by_links;
  for (const Step &s : plan.steps) plan.uses_links = plan.uses_links || s.kind == StepKind::Send || s.kind == StepKind::Recv;
  if (plan.slot_bytes == 0 && plan.scratch_stride == 0) plan.slots = 0;
}

double bridge_time(std::span<const double> rates) noexcept {
  double least = rates.empty() ? 1 : rates[0], sum = 0;
  for (double b : rates) {
    least = std::min(least, b);
    sum += b;
  }
  return rates.size() < 2 ? 0 : std::max(1 / least, 2 * static_cast<double>(rates.size() - 1) / sum);
}

// Any w with sum 1 and 0 <= w_i <= cap_i = clip((B_i T* / n - 1) / (k - 2), 0, 1) attains T*: scaling the caps by 1 / sum,
// which is at most 1, keeps every one of them. Two groups: any split.
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
  const uint64_t lines = b.plan.chunk / kLine;
  double sum = 0;
  uint64_t at = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    sum += shares[i];
    const uint64_t end = i + 1 == owners.size()
                             ? lines
                             : std::min(lines, static_cast<uint64_t>(std::floor(sum * static_cast<double>(lines) + 0.5)));
    out[owners[i]] = {at * kLine, std::max(at, end) * kLine};
    at = std::max(at, end);
  }
  return out;
}

}  // namespace isthmus::plan
