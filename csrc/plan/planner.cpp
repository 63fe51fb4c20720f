// plan_collective: validation, digest, the choice of the template, the stated volume.
#include <algorithm>
#include <bit>
#include <numeric>

#include "base/error.hpp"
#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

constexpr uint64_t kPlanVersion = 18;  // part of every digest: raise it when a template changes

// What all ranks must agree on: `whole`, too, whose libraries may serve blocks of a plan that is made on `t`. Sizes of v-collectives and in_place
// are each rank's own affair.
uint64_t digest_of(const topology::Topology &whole, const topology::Topology &t, const Request &r) {
  uint64_t h = 1469598103934665603ull;
  const auto add = [&h](uint64_t v) {
    for (int i = 0; i < 8; ++i) h = (h ^ ((v >> (8 * i)) & 0xff)) * 1099511628211ull;
  };
  const bool pair = is_message(r.collective);
  add(kPlanVersion);
  add(whole.digest);
  add(t.digest);
  add(static_cast<uint64_t>(pair ? Collective::Send : r.collective));
  add(r.collective == Collective::Barrier ? 0 : static_cast<uint64_t>(r.dtype));
  add(is_reduction(r.collective) ? static_cast<uint64_t>(r.op) : 0);
  add(has_root(r.collective) ? static_cast<uint64_t>(r.root) : 0);
  add(is_varying(r.collective) || r.collective == Collective::Barrier ? 0 : r.bytes);
  add(r.chunk_bytes);
  add(r.max_slots);
  add(r.small_bytes);
  if (r.apart) add(1);
  if (r.far) {
    add(2);
    add(r.way_bytes);
  }
  if (r.paced_bytes > 0) {
    add(3);
    add(r.paced_bytes);
  }
  return h;
}

void check(const topology::Topology &t, int rank, const Request &r) {
  const int world = t.size();
  const char *name = collective_name(r.collective);
  if (static_cast<int>(r.collective) >= kCollectiveCount)
    fail(Code::Argument, "unknown collective {}", static_cast<int>(r.collective));
  if (static_cast<int>(r.dtype) >= kDTypeCount)
    fail(Code::Argument, "{}: unknown dtype {}", name, static_cast<int>(r.dtype));
  if (rank < 0 || rank >= world) fail(Code::Argument, "{}: rank {} is not in a world of {}", name, rank, world);
  if (is_reduction(r.collective) && (static_cast<int>(r.op) >= kRedOpCount || !combines(r.dtype, r.op)))
    fail(Code::Unsupported, "{}: {} of {} has no meaning", name, redop_name(r.op), dtype_name(r.dtype));
  if (has_root(r.collective) && (r.root < 0 || r.root >= world))
    fail(Code::Argument, "{}: root {} is not in a world of {} (0 to {})", name, r.root, world, world - 1);
  if (r.collective == Collective::Send && (r.root < 0 || r.root >= world))
    fail(Code::Argument, "send: peer {} is not in a world of {} (0 to {})", r.root, world, world - 1);
  if (r.collective == Collective::Recv && (r.root < -1 || r.root >= world))
    fail(Code::Argument, "recv: peer {} is not in a world of {} (0 to {}, or -1 for any)", r.root, world, world - 1);
  if (!is_varying(r.collective) && r.bytes % dtype_size(r.dtype) != 0)
    fail(Code::Argument, "{}: {} bytes are no whole number of {}", name, r.bytes, dtype_name(r.dtype));
  if (r.chunk_bytes < kLine)
    fail(Code::Argument, "{}: chunks of {} bytes; at least {} are needed", name, r.chunk_bytes, kLine);
  if (r.collective == Collective::AllToAllV && r.in_place)
    fail(Code::Unsupported, "all_to_all_v has no in-place form: give it two buffers");
}

// Whether the island's library does its part of the operation. An island of one has nobody to call. PREMUL_SUM, which has a factor of each rank, is the
// library's where it serves everybody, and else is planned without the library. AVG is one of two sums: a sum that is divided where the bridge rounds, or a sum of numbers that were made smaller
// and are made larger again where they are reduced. An island that is alone needs the library's own AVG.
// `near`: all ranks share memory, so islands with libraries exchange by slots, which blocks of any size take.
bool serves(const topology::Island &g, const Request &r, bool alone, bool near) {
  if (g.ccl.empty() || g.ranks.size() < 2) return false;
  if (is_reduction(r.collective) && r.op == RedOp::PremulSum && !alone) return false;
  const Asked asked = asked_of_library(r, g.ranks.size(), alone);
  if (asked.halvings > most_halvings(r.dtype)) return false;
  const auto can = [&](IslandCall call) { return g.ccl_table.can(call, r.dtype, asked.op); };
  using Call = IslandCall;
  switch (r.collective) {
    case Collective::AllReduce:
      if (alone) return can(Call::AllReduce);
      if (r.bytes <= r.small_bytes) return can(Call::AllReduce) && can(Call::Broadcast);
      return can(Call::ReduceScatter) && can(Call::Reduce) && can(Call::AllGather) && can(Call::Broadcast);
    case Collective::Reduce:
      if (alone || r.bytes <= r.small_bytes) return can(Call::Reduce);
      return can(Call::ReduceScatter) && can(Call::Reduce) && can(Call::AllGather) && can(Call::Broadcast);
    case Collective::Broadcast: return can(Call::Broadcast) && can(Call::AllGather);
    case Collective::AllGather: return alone && !r.apart ? can(Call::AllGather) : can(Call::Broadcast);
    case Collective::ReduceScatter:
      if (alone) return can(r.apart ? Call::Reduce : Call::ReduceScatter);
      return can(Call::ReduceScatter) && can(Call::Reduce);
    case Collective::AllToAll: return alone && can(r.apart ? Call::AllToAllV : Call::AllToAll);
    case Collective::Gather:
    case Collective::GatherV:
    case Collective::Scatter:
    case Collective::ScatterV: return alone && can(Call::Send) && can(Call::Recv);
    case Collective::AllGatherV: return (alone || near) && can(Call::Broadcast);
    case Collective::ReduceScatterV: return can(Call::Reduce) && (alone || (near && can(Call::ReduceScatter)));
    case Collective::AllToAllV: return alone && can(Call::AllToAllV);
    default: return false;
  }
}

// One rank alone: from input to output.
void plan_alone(Builder &b) {
  b.choose_chunk(1);
  if (b.request.collective == Collective::Barrier) return;
  b.plan.slots = 0;
  b.stage("copy", 0);
  const auto all = b.extent(Memory::Input, 0, b.whole());
  const Span in = Builder::input(0, 0), out = Builder::output(0, 0);
  if (!is_reduction(b.request.collective)) return b.move(all, in, out, false, b.stream);
  // A reduction of one contribution, so that numbers (canonical NaN, BOOL as 0 or 1) are those of any other world.
  if (b.scaled) b.move(all, in, out, true);
  b.reduce(all, {b.scaled ? out : in}, {}, out, false, nullptr);
}

void plan_bridged(Builder &b) {
  switch (b.request.collective) {
    case Collective::AllReduce:
      if (takes_one_way(b.topology, b.request)) return plan_one_way_all_reduce(b);
      if (b.shared_slots) return plan_shared_all_reduce(b);
      if (b.across_hosts && b.request.bytes > b.request.small_bytes) return plan_hosts_all_reduce(b);
      return b.library ? plan_island_all_reduce(b) : plan_all_reduce(b);
    case Collective::Reduce: return plan_reduce(b);
    case Collective::Broadcast: return plan_broadcast(b);
    case Collective::AllGather:
    case Collective::AllGatherV: return plan_all_gather(b);
    case Collective::ReduceScatter:
    case Collective::ReduceScatterV: return plan_reduce_scatter(b);
    case Collective::AllToAll:
    case Collective::AllToAllV:
    case Collective::Gather:
    case Collective::GatherV:
    case Collective::Scatter:
    case Collective::ScatterV: return plan_exchange(b);
    case Collective::Barrier: return plan_barrier(b);
    case Collective::Send:
    case Collective::Recv: return plan_point_to_point(b);
  }
}

// Bytes of an extent over all chunks, for blocks of `bytes`.
uint64_t total_bytes(const Extent &e, uint32_t chunks, uint64_t bytes) {
  if (e.of == Memory::Scratch) return e.length * chunks;
  uint64_t sum = 0;
  const uint64_t whole =
      bytes >= e.base + e.length ? std::min<uint64_t>((bytes - e.base - e.length) / e.stride + 1, chunks) : 0;
  sum = whole * e.length;
  for (uint64_t c = whole; c < chunks && e.base + e.stride * c < bytes; ++c)
    sum += std::min(e.length, bytes - e.base - e.stride * c);
  return sum;
}

std::shared_ptr<const Plan> plan_on(const topology::Topology &whole, const topology::Topology &t, int rank,
                                    const Request &request, std::vector<int> inside) {
  auto plan = std::make_shared<Plan>();
  plan->request = request;
  plan->rank = rank;
  plan->world = t.size();
  plan->digest = digest_of(whole, t, request);
  plan->chunk = kLine;
  const Collective c = request.collective;
  const bool pair = is_message(c);
  if (request.bytes == 0 && !is_varying(c) && c != Collective::Barrier) return plan;  // nothing to move: no steps
  const Clusters clusters(t);
  Builder b(t, clusters, rank, *plan);
  b.inside = std::move(inside);
  if (t.size() == 1 && !pair) plan_alone(b);
  else if (b.library && b.others == 0) plan_island(b);
  else plan_bridged(b);
  // Where the library is given blocks, the user's memory is the device's for the whole operation, wherever it lies.
  if (request.device || !b.inside.empty()) stage_user_memory(b);
  if (!b.inside.empty()) plan_inside(b);
  b.finish();
  if (!is_varying(c))
    for (const Step &s : plan->steps)
      if (s.kind == StepKind::Send)
        plan->link_bytes += total_bytes(s.extent, plan->chunks, request.bytes) * (s.partial ? b.ratio : 1);
  return plan;
}

}  // namespace

Asked asked_of_library(const Request &r, size_t size, bool alone) noexcept {
  if (!is_reduction(r.collective) || r.op != RedOp::Avg || alone) return {r.op, 0};
  if (!is_short_ranged(r.dtype)) return {RedOp::Sum, 0};
  return {RedOp::PremulSum, static_cast<uint8_t>(std::bit_width(size - 1))};
}

topology::Topology planned_on(const topology::Topology &t, const Request &request) {
  // The same on all ranks: it does not depend on what is each rank's own affair (in_place).
  const bool alone = t.islands.size() == 1, near = topology::one_memory(t);
  std::vector<bool> keep;
  size_t multiple = 1;
  for (const auto &g : t.islands) {
    keep.push_back(serves(g, request, alone, near));
    if (keep.back() && multiple <= kMostMultiple) multiple = std::lcm(multiple, g.ranks.size());
  }
  if (!alone && multiple > kMostMultiple) keep.assign(keep.size(), false);
  for (size_t g = 0; g < keep.size(); ++g)
    if (!keep[g] && !t.islands[g].ccl.empty()) return topology::dissolve(t, keep);
  return t;
}

std::vector<int> inside_of(const topology::Topology &t, int rank, const Request &request) {
  const Collective c = request.collective;
  const bool to_all = is_exchange(c), rooted = gathers_to_root(c) || scatters_from_root(c);
  const auto island_of = [&](int r) { return t.island_of[static_cast<size_t>(r)]; };
  const topology::Island &g = t.islands[static_cast<size_t>(island_of(rank))];
  if (t.islands.size() < 2 || g.ccl.empty() || g.ranks.size() < 2 || (!to_all && !rooted)) return {};
  if (rooted && island_of(request.root) != island_of(rank)) return {};
  const auto can = [&](IslandCall call) { return g.ccl_table.can(call, request.dtype, RedOp::Sum); };
  if (to_all ? !can(IslandCall::AllToAllV) : !can(IslandCall::Send) || !can(IslandCall::Recv)) return {};
  for (const int r : g.ranks)
    if (t.ranks[static_cast<size_t>(r)].device == "host") return {};
  return g.ranks;
}

bool has_leader_exchange(const topology::Topology &planned, Collective c) noexcept {
  return !planned.flat && planned.islands.size() > 1 && is_single_block(c) && !is_message(c) && c != Collective::Barrier;
}

bool takes_leader_exchange(const topology::Topology &planned, const Request &r) noexcept {
  return has_leader_exchange(planned, r.collective) && r.bytes > 0 && r.bytes <= r.small_bytes;
}

// In pieces a bridge of n sends its contributions to the parts of the others, (n - 1) / n of the message, and its own result to each of them, as much.
// One way it sends its whole contribution to each of them, n - 1 messages. Contributions may be wider than results.
uint64_t most_one_way_bytes(const topology::Topology &planned, const Request &r) noexcept {
  const size_t n = planned.islands.size();
  if (!r.far || r.collective != Collective::AllReduce || planned.flat || n < 2) return 0;
  if (topology::has_libraries(planned) || topology::has_devices(planned)) return 0;
  const bool partial =
      std::any_of(planned.islands.begin(), planned.islands.end(), [](const auto &g) { return g.ranks.size() > 1; });
  const size_t wide = partial ? accumulator_ratio(r.dtype) : 1;
  const uint64_t more = (n - 1) * (n * wide - wide - 1);  // of n-th parts of the message
  return more == 0 ? UINT64_MAX : r.way_bytes / more * n;
}
bool takes_one_way(const topology::Topology &planned, const Request &r) noexcept {
  return r.bytes > r.small_bytes && r.bytes <= most_one_way_bytes(planned, r);
}

uint64_t most_leader_bytes(uint64_t chunk_bytes) noexcept {
  // A ring at a fixed place has room for 48 chunks, and links grant 64: four messages in the widest accumulator are 16.
  return std::min<uint64_t>(4 * chunk_bytes, topology::kMostLeaderBytes);
}

std::shared_ptr<const Plan> plan_collective(const topology::Topology &whole, int rank, const Request &request) {
  check(whole, rank, request);
  if (topology::has_libraries(whole)) {
    const topology::Topology t = planned_on(whole, request);
    return plan_on(whole, t, rank, request, inside_of(whole, rank, request));
  }
  return plan_on(whole, whole, rank, request, {});
}

}  // namespace isthmus::plan
