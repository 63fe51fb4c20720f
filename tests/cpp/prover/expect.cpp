#include "expect.hpp"

#include <algorithm>
#include <map>
#include <numeric>

namespace isthmus::prover {

using plan::Collective;

bool reduces(Collective c) {
  return c == Collective::AllReduce || c == Collective::Reduce || c == Collective::ReduceScatter ||
         c == Collective::ReduceScatterV;
}
bool varies(Collective c) {
  return c == Collective::AllGatherV || c == Collective::ReduceScatterV || c == Collective::AllToAllV ||
         c == Collective::GatherV || c == Collective::ScatterV;
}

bool overflows(const plan::Request &r, size_t groups) {
  return reduces(r.collective) && groups > 1 && r.op == RedOp::Avg && accumulator(r.dtype) != r.dtype &&
         r.dtype != DType::BFloat16;  // which reaches as far as float32
}

bool share(const topology::Topology &t, int a, int b) {
  const auto &x = t.ranks[static_cast<size_t>(a)], &y = t.ranks[static_cast<size_t>(b)];
  return x.host == y.host && (t.bridge != topology::Bridge::Tcp || topology::island_name(x) == topology::island_name(y));
}

bool meets_on_hosts(const topology::Topology &t, const Operation &op) {
  const Collective c = op.request.collective;
  if (c != Collective::AllReduce && c != Collective::Broadcast && c != Collective::AllGather &&
      c != Collective::ReduceScatter)
    return false;
  if (!topology::has_libraries(t) || topology::one_memory(t)) return false;
  if ((c == Collective::AllReduce || c == Collective::Broadcast) && op.request.bytes <= op.request.small_bytes) return false;
  for (int a = 0; a < t.size(); ++a)
    for (int b = 0; b < a; ++b)
      if (share(t, a, b) && t.island_of[static_cast<size_t>(a)] != t.island_of[static_cast<size_t>(b)]) return true;
  return false;
}

bool pieces_say_the_order(const topology::Topology &t, const Operation &op) {
  return op.request.collective == Collective::AllReduce && meets_on_hosts(t, op) &&
         std::any_of(t.islands.begin(), t.islands.end(), [&](const topology::Island &g) {
           return std::any_of(g.ranks.begin(), g.ranks.end(), [&](int r) { return !share(t, r, g.ranks[0]); });
         });
}

bool no_frames_inside(const topology::Topology &t, const Operation &op) {
  return !topology::has_libraries(t) || meets_on_hosts(t, op);
}

namespace {

// Bytes that rank s gives to rank d (all_gather: to everybody; reduce_scatter: the block that d gets).
uint64_t block_bytes(const Operation &op, int s, int d) {
  switch (op.request.collective) {
    case Collective::AllGatherV:
    case Collective::GatherV: return op.counts[static_cast<size_t>(s)];
    case Collective::ReduceScatterV:
    case Collective::ScatterV: return op.counts[static_cast<size_t>(d)];
    case Collective::AllToAllV: return op.matrix[static_cast<size_t>(s)][static_cast<size_t>(d)];
    default: return op.request.bytes;
  }
}

void place(const std::vector<uint64_t> &bytes, uint64_t gap, std::vector<uint64_t> &displ) {
  uint64_t at = 0;
  for (uint64_t b : bytes) {
    displ.push_back(at);
    at += b + gap;
  }
}

}  // namespace

Blocks blocks_of(const topology::Topology &t, const Operation &op, int rank) {
  Blocks b;
  const int world = t.size(), root = op.request.root;
  const bool is_root = rank == root;
  const auto row = [&](bool from_me) {
    std::vector<uint64_t> v;
    for (int q = 0; q < world; ++q) v.push_back(from_me ? block_bytes(op, rank, q) : block_bytes(op, q, rank));
    return v;
  };
  const uint64_t mine = block_bytes(op, rank, rank);
  switch (op.request.collective) {
    case Collective::AllReduce: b.input_bytes = b.output_bytes = {mine}; break;
    case Collective::Reduce:
      b.input_bytes = {mine};
      if (is_root) b.output_bytes = {mine};
      break;
    case Collective::Broadcast:
      b.output_bytes = {mine};
      if (is_root) b.input_bytes = {mine};
      break;
    case Collective::AllGather:
    case Collective::AllGatherV:
      b.input_bytes = {mine};
      b.output_bytes = row(false);
      break;
    case Collective::ReduceScatter:
    case Collective::ReduceScatterV:
      b.input_bytes = row(true);
      b.output_bytes = {mine};
      break;
    case Collective::AllToAll:
    case Collective::AllToAllV:
      b.input_bytes = row(true);
      b.output_bytes = row(false);
      break;
    case Collective::Gather:
    case Collective::GatherV:
      b.input_bytes = {mine};
      if (is_root) b.output_bytes = row(false);
      break;
    case Collective::Scatter:
    case Collective::ScatterV:
      b.output_bytes = {mine};
      if (is_root) b.input_bytes = row(true);
      break;
    case Collective::Barrier:
    case Collective::Send:
    case Collective::Recv: break;
  }
  const uint64_t gap = varies(op.request.collective) || op.request.apart ? 3 * dtype_size(op.request.dtype) : 0;
  place(b.input_bytes, gap, b.input_displ);
  place(b.output_bytes, gap, b.output_displ);
  return b;
}

Expected expected_of(const topology::Topology &t, const Operation &op, int index, int rank, uint32_t block,
                     Symbols &symbols) {
  const auto from = [&](int s, int input_block) {
    return Expected{block_bytes(op, s, rank), {symbols.leaf(index, s), static_cast<uint32_t>(input_block), 0, 1, false}};
  };
  const auto b = static_cast<int>(block);
  switch (op.request.collective) {
    case Collective::Broadcast: return from(op.request.root, 0);
    case Collective::AllGather:
    case Collective::AllGatherV:
    case Collective::Gather:
    case Collective::GatherV: return from(b, 0);
    case Collective::AllToAll:
    case Collective::AllToAllV: return from(b, rank);
    case Collective::Scatter:
    case Collective::ScatterV: return from(op.request.root, rank);
    default: break;
  }
  if (!reduces(op.request.collective)) return {};
  // Groups in order, ranks in order, rounded once. Where groups meet on hosts, first in each host.
  const bool by_hosts = meets_on_hosts(t, op) && op.request.collective == Collective::AllReduce;
  std::map<int, std::vector<int>> hosts;  // by the first rank of each
  std::vector<int> groups;
  for (const auto &g : t.islands) {
    std::vector<int> terms;
    for (int r : g.ranks) {
      const int x = symbols.leaf(index, r);
      terms.push_back(op.request.op == RedOp::PremulSum ? symbols.scaled(x) : x);
    }
    groups.push_back(g.ccl.empty()                             ? symbols.sum(terms)
                     : overflows(op.request, t.islands.size()) ? symbols.kept(symbols.island(terms))
                                                               : symbols.island(terms));
    std::vector<int> &there = hosts[t.memory_of[static_cast<size_t>(g.ranks[0])]];
    if (g.ccl.empty()) there.insert(there.end(), terms.begin(), terms.end());
    else there.push_back(groups.back());
  }
  if (by_hosts) {
    groups.clear();
    for (const auto &[first, terms] : hosts) groups.push_back(symbols.sum(terms));
  }
  const bool island = t.islands.size() == 1 && !t.islands[0].ccl.empty();  // what its library gives is the result
  const int sum = symbols.sum(groups);
  const uint64_t divisor = op.request.op == RedOp::Avg ? t.ranks.size() : 1;
  const bool scatter =
      op.request.collective == Collective::ReduceScatter || op.request.collective == Collective::ReduceScatterV;
  return {block_bytes(op, 0, rank),
          {island ? sum : symbols.final(sum, divisor), scatter ? static_cast<uint32_t>(rank) : 0, 0, 1, false}};
}

namespace {
// On one host such operations need no link.
bool by_slots(const topology::Topology &t, const Operation &op) {
  const Collective c = op.request.collective;
  return t.flat || (topology::has_libraries(t) && topology::one_memory(t) &&
                    (c == Collective::Broadcast || c == Collective::AllGather || c == Collective::AllGatherV || reduces(c)));
}
}  // namespace

bool finishes_everywhere(const topology::Topology &t, const Operation &op) {
  return op.request.bytes <= op.request.small_bytes || plan::takes_one_way(t, op.request);
}

uint64_t bridge_bound(const topology::Topology &whole, const topology::Topology &t, const Operation &op,
                      const std::vector<uint64_t> &finished) {
  if (by_slots(t, op) || t.islands.size() == 1) return 0;
  const uint64_t n = op.request.bytes, k = t.islands.size();
  const uint64_t ratio = dtype_size(accumulator(op.request.dtype)) / dtype_size(op.request.dtype);
  if (meets_on_hosts(t, op) && op.request.collective != Collective::ReduceScatter) {
    uint64_t hosts = 0;
    for (int r = 0; r < t.size(); ++r) hosts += t.memory_of[static_cast<size_t>(r)] == r;
    // A sum of each host, and the result to each; the chunk, or the block, to each.
    if (op.request.collective == Collective::AllReduce) return (hosts - 1) * n * (ratio + 1);
    return (hosts - 1) * n * (op.request.collective == Collective::AllGather ? t.ranks.size() : 1);
  }
  const auto factor = [&](size_t g) {
    // One rank sends what it has, a library what it has rounded.
    return t.islands[g].ranks.size() > 1 && t.islands[g].ccl.empty() ? ratio : 1;
  };
  const auto home = static_cast<size_t>(t.island_of[static_cast<size_t>(op.request.root)]);
  uint64_t sum = 0;
  switch (op.request.collective) {
    case Collective::AllReduce:  // one hop: everything to everybody; else 2 (k-1) n: to the owner of a part, and back
      if (finishes_everywhere(t, op))
        for (size_t g = 0; g < k; ++g) sum += (k - 1) * n * factor(g);
      else
        for (size_t g = 0; g < k; ++g) sum += (n - finished[g]) * factor(g) + (k - 1) * finished[g];
      return sum;
    case Collective::Reduce:
      for (size_t g = 0; g < k; ++g) sum += g == home ? 0 : n * factor(g);
      return sum;
    case Collective::Broadcast: return (k - 1) * n;
    case Collective::
        ReduceScatter:  // every group's contribution to what others finish, and the results that groups finish for others
      if (meets_on_hosts(t, op)) break;
      for (size_t g = 0; g < k; ++g) {
        const uint64_t own = t.islands[g].ranks.size() * n;
        sum += (t.ranks.size() * n - finished[g]) * factor(g) + (finished[g] > own ? finished[g] - own : 0);
      }
      return sum;
    default: break;
  }
  const auto crosses = [&](int s, int d) {  // no group has both, or none whose library moves it
    const std::vector<int> inside = plan::inside_of(whole, s, op.request);
    return t.island_of[static_cast<size_t>(s)] != t.island_of[static_cast<size_t>(d)] &&
           std::find(inside.begin(), inside.end(), d) == inside.end();
  };
  for (int s = 0; s < t.size(); ++s) {
    const auto g = static_cast<size_t>(t.island_of[static_cast<size_t>(s)]);
    switch (op.request.collective) {
      case Collective::AllGather:
      case Collective::AllGatherV: sum += (k - 1) * block_bytes(op, s, 0); break;
      case Collective::ReduceScatter:
      case Collective::ReduceScatterV:
        for (size_t h = 0; h < k; ++h) sum += h == g ? 0 : block_bytes(op, 0, s) * factor(h);
        break;
      case Collective::AllToAll:
      case Collective::AllToAllV:
        for (int d = 0; d < t.size(); ++d) sum += crosses(s, d) ? block_bytes(op, s, d) : 0;
        break;
      case Collective::Gather:
      case Collective::GatherV: sum += crosses(s, op.request.root) ? block_bytes(op, s, op.request.root) : 0; break;
      case Collective::Scatter:
      case Collective::ScatterV: sum += crosses(op.request.root, s) ? block_bytes(op, op.request.root, s) : 0; break;
      default: break;
    }
  }
  return sum;
}

uint64_t token_bound(const topology::Topology &t, const Operation &op, uint64_t frames) {
  if (by_slots(t, op) || meets_on_hosts(t, op)) return 0;
  if (op.request.collective == Collective::Barrier) {
    uint64_t rounds = 0;
    for (size_t step = 1; step < t.islands.size(); step *= 2) ++rounds;
    return 8 * rounds * t.islands.size();
  }
  // Reductions without an answer acknowledge the frames whose memory is used again.
  const bool answers = op.request.collective == Collective::AllReduce;
  // What a rank that a library serves sends lies in a slot, which is used again.
  if (topology::has_libraries(t) && op.request.collective == Collective::Broadcast) return 8 * frames;
  return reduces(op.request.collective) && !answers ? 8 * frames : 0;
}

}  // namespace isthmus::prover
