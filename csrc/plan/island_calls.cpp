// Templates that are calls of a vendor's library alone: an island that is alone, and the blocks that stay in an island.
#include <algorithm>

#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

// What is done once, for whole blocks: a step that is given no chunk.
Extent once() { return {Memory::Scratch, 0, 0, 0, 1}; }

// No library does all_to_all in place. Whether a rank asks for it is the rank's own affair: such a rank gives a copy of its input.
void island_all_to_all(Builder &b) {
  const Range all = b.whole();
  const auto block = [&](int r) { return b.extent(Memory::Input, static_cast<uint32_t>(r), all); };
  Span from = Builder::input(0, 0);
  if (b.request.in_place) {
    const uint64_t bytes = b.request.bytes, copy = b.need_device(bytes * static_cast<uint64_t>(b.world));
    for (int r = 0; r < b.world; ++r)
      b.move(block(r), Builder::input(static_cast<uint32_t>(r), 0),
             Builder::device(copy + bytes * static_cast<uint64_t>(r)));
    from = Builder::device(copy);
  }
  if (b.request.apart) b.call(IslandCall::AllToAllV, When::Always, once(), from, Builder::output(0, 0));
  else b.call(IslandCall::AllToAll, When::Always, block(0), from, Builder::output(0, 0));
}

// Libraries have no call for gather and scatter. They are a group of sends and receives, and the root's own block is a copy.
// With counts the calls are the same, of blocks that each have a size of their own. Every rank knows all sizes, and the operation's digest has
// them.
template <class F>
void each_but_root(const Builder &b, F f) {
  for (int i = 1; i < b.world; ++i) f((b.request.root + i) % b.world);
}
void island_gather(Builder &b) {
  b.together();
  const Range all = b.whole();
  const auto mine = b.extent(Memory::Input, 0, all);
  const Span input = Builder::input(0, 0);
  if (b.rank != b.request.root) return b.call(IslandCall::Send, When::Always, mine, input, input, b.request.root);
  b.move(mine, input, Builder::output(static_cast<uint32_t>(b.rank), 0));
  each_but_root(b, [&](int q) {
    const Span to = Builder::output(static_cast<uint32_t>(q), 0);
    b.call(IslandCall::Recv, When::Always, b.extent(Memory::Output, static_cast<uint32_t>(q), all), to, to, q);
  });
}
void island_scatter(Builder &b) {
  b.together();
  const Range all = b.whole();
  const auto mine = b.extent(Memory::Output, 0, all);
  const Span output = Builder::output(0, 0);
  if (b.rank != b.request.root) return b.call(IslandCall::Recv, When::Always, mine, output, output, b.request.root);
  b.move(mine, Builder::input(static_cast<uint32_t>(b.rank), 0), output);
  each_but_root(b, [&](int q) {
    const Span from = Builder::input(static_cast<uint32_t>(q), 0);
    b.call(IslandCall::Send, When::Always, b.extent(Memory::Input, static_cast<uint32_t>(q), all), from, from, q);
  });
}

// Two ranks know each size. A library that is given sizes that do not fit hangs, or writes behind the end of a buffer. So the host list opens
// the gate when the sizes were compared.
void island_all_to_all_v(Builder &b) {
  b.wait(b.rank, kReady);
  b.call(IslandCall::AllToAllV, When::Always, once(), Builder::input(0, 0), Builder::output(0, 0));
  b.plan.pairwise_sizes = true;
  b.plan.sizes_by_links = !topology::one_memory(b.topology);
  b.stage("compared", 0);
  b.post(kReady);
}

// Blocks of unequal sizes, or that do not lie back to back: a library's broadcast of each, all of them a group.
void island_all_gather_v(Builder &b) {
  b.together();
  const auto block = [&](int r) { return b.extent(Memory::Output, static_cast<uint32_t>(r), b.whole()); };
  const auto output = [](int r) { return Builder::output(static_cast<uint32_t>(r), 0); };
  b.move(block(b.rank), Builder::input(0, 0), output(b.rank));
  for (int r = 0; r < b.world; ++r) b.call(IslandCall::Broadcast, When::Always, block(r), output(r), output(r), r);
}
// And its sum of each, for the rank that gets it.
void island_reduce_scatter_v(Builder &b) {
  b.together();
  for (int r = 0; r < b.world; ++r) {
    const auto block = static_cast<uint32_t>(r);
    b.call(IslandCall::Reduce, When::Always, b.extent(Memory::Input, block, b.whole()), Builder::input(block, 0),
           Builder::output(0, 0), r);
  }
}

}  // namespace

// One island with a library and nobody else: the library's own call.
void plan_island(Builder &b) {
  b.plan.chunk = b.varying ? kWholeBlocks : std::max<uint64_t>((b.request.bytes + kLine - 1) / kLine * kLine, kLine);
  b.plan.chunks = 1;
  b.device_stage("island", 0);
  const Range all = b.whole();
  const Span input = Builder::input(0, 0), output = Builder::output(0, 0);
  // A root is a rank of the communicator; the library counts the positions of its island, which here are the same.
  const int root = b.request.root;
  const auto given = b.extent(Memory::Input, 0, all), got = b.extent(Memory::Output, 0, all);
  switch (b.request.collective) {
    case Collective::AllReduce: return b.call(IslandCall::AllReduce, When::Always, given, input, output);
    case Collective::Reduce: return b.call(IslandCall::Reduce, When::Always, given, input, output, root);
    case Collective::Broadcast:
      if (b.rank == root) b.move(got, input, output);
      return b.call(IslandCall::Broadcast, When::Always, got, output, output, root);
    case Collective::AllGather:
      if (b.request.apart) return island_all_gather_v(b);
      return b.call(IslandCall::AllGather, When::Always, given, input, output);
    case Collective::ReduceScatter:
      if (b.request.apart) return island_reduce_scatter_v(b);
      return b.call(IslandCall::ReduceScatter, When::Always, got, input, output);
    case Collective::AllToAll: return island_all_to_all(b);
    case Collective::Gather:
    case Collective::GatherV: return island_gather(b);
    case Collective::Scatter:
    case Collective::ScatterV: return island_scatter(b);
    case Collective::AllGatherV: return island_all_gather_v(b);
    case Collective::ReduceScatterV: return island_reduce_scatter_v(b);
    case Collective::AllToAllV: return island_all_to_all_v(b);
    default: break;
  }
}

// The calls stand behind the gate of the first chunk. By then sizes were compared, and what the device copies for the bridge has begun.
void plan_inside(Builder &b) {
  const Collective c = b.request.collective;
  const bool gathers = gathers_to_root(c);
  const uint64_t bytes = b.varying ? kWholeBlocks : b.request.bytes;
  uint32_t skew = 0;
  for (const Stage &s : b.plan.device) skew = std::max(skew, s.skew);
  b.device_stage("island", skew);
  const auto whole = [&](Memory of, int block) { return Extent{of, static_cast<uint32_t>(block), 0, b.plan.chunk, bytes}; };
  const auto position = [&](int q) {
    return static_cast<int>(std::find(b.inside.begin(), b.inside.end(), q) - b.inside.begin());
  };
  if (is_exchange(c)) {
    Span from = Builder::input(0, 0);
    if (b.request.in_place) {  // no library does it in place
      uint64_t at = b.need_device(bytes * b.inside.size());
      from = Builder::device(at);
      for (const int q : b.inside) {
        b.move(whole(Memory::Input, q), Builder::input(static_cast<uint32_t>(q), 0), Builder::device(at));
        b.plan.steps.back().when = When::FirstChunk;
        at += bytes;
      }
    }
    b.call(IslandCall::AllToAllV, When::FirstChunk, once(), from, Builder::output(0, 0));
    if (b.varying) b.plan.sizes_by_links = !topology::one_memory(b.topology);
  } else {
    const int root = b.request.root;
    b.together();
    for (const int q : b.inside) {
      if (q == b.rank || (q != root && b.rank != root)) continue;
      const auto block = b.rank == root ? q : 0;
      const bool gives = gathers ? q == root : b.rank == root;
      const Span at =
          gives ? Builder::input(static_cast<uint32_t>(block), 0) : Builder::output(static_cast<uint32_t>(block), 0);
      b.call(gives ? IslandCall::Send : IslandCall::Recv, When::FirstChunk,
             whole(gives ? Memory::Input : Memory::Output, block), at, at, position(q));
    }
  }
  b.plan.chunks = std::max(b.plan.chunks, 1u);
  b.plan.comes_early = false;
}

}  // namespace isthmus::plan
