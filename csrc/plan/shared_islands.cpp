// Templates of what is only moved, where libraries serve some ranks and all stand on one host (shared_slots.hpp).
#include <algorithm>

#include "plan/shared_slots.hpp"

namespace isthmus::plan {

// The root's slot has the chunk. Every rank that no library serves reads the whole chunk. The ranks of another island read a piece each, which
// their library gathers; of a small message the first of them reads all. The root's own island has the chunk from the library.
void plan_shared_broadcast(Builder &b) {
  b.choose_island_chunk();
  b.need_ring(b.plan.chunk);
  const int root = b.request.root;
  const size_t home = b.clusters.of[static_cast<size_t>(root)], g = b.cluster;
  const bool small = b.request.bytes <= b.request.small_bytes;
  const Memory known = b.rank == root ? Memory::Input : Memory::Output;
  const auto ext = [&](Range r) { return b.extent(known, 0, r); };
  const Span input = Builder::input(0, 0), output = Builder::output(0, 0);
  const auto part_of = [&](int q) -> Range {  // of the root's slot
    const size_t h = b.clusters.of[static_cast<size_t>(q)], j = b.clusters.at[static_cast<size_t>(q)];
    if (q == root || (h == home && b.clusters.library[h])) return {};
    if (!b.clusters.library[h]) return b.whole();
    if (small) return j == 0 ? b.whole() : Range{};
    return piece_at(b, h, j);
  };
  const auto each_reader = [&](auto f) {
    for (int i = 1; i < b.world; ++i)
      if (const int q = (root + i) % b.world; !part_of(q).empty()) f(q);
  };

  if (!b.library && b.rank == root) {
    b.stage("copy in", 0);
    each_reader([&](int q) { b.wait_reuse(q, kConsumed); });
    b.move(ext(b.whole()), input, b.ring(b.rank, 0));
    b.post(kCopied);
    return b.move(ext(b.whole()), input, output, false, b.stream);
  }
  if (!b.library) {
    b.stage("copy out", kTurn);
    b.wait(root, kCopied);
    b.move(ext(b.whole()), b.ring(root, 0), output, false, b.stream);
    return b.post(kConsumed);
  }
  if (g == home) {
    b.device_stage("spread", 0);
    if (b.rank == root) {
      b.wait_reuse(b.rank, kReady);
      b.move(ext(b.whole()), input, b.ring(b.rank, 0));
      b.post(kStaged);
      b.move(ext(b.whole()), input, output);
    }
    b.call(IslandCall::Broadcast, When::Always, ext(b.whole()), output, output,
           static_cast<int>(b.clusters.at[static_cast<size_t>(root)]));
    if (b.rank != root) return;
    b.stage("give", 0);
    b.wait(b.rank, kStaged);
    b.post(kCopied);
    if (!b.reuses()) return;
    b.stage("consumed", kAhead);
    each_reader([&](int q) { b.wait(q, kConsumed); });
    return b.post(kReady);  // to be filled again
  }

  const Range mine = part_of(b.rank);
  Takes takes(b);
  takes.add(root, ext(mine), mine.begin, Builder::output(0, mine.begin));
  b.device_stage("copy out", 0);
  b.together();
  if (takes.any()) {
    b.wait(b.rank, kReady);
    takes.copy();
    if (b.reuses()) b.post(kTaken);
  }
  if (small) b.call(IslandCall::Broadcast, When::Always, ext(b.whole()), output, output, 0);
  else gather_pieces(b, known, output);
  if (!takes.any()) return;
  b.stage("take", 0);
  takes.arrive();
  b.post(kReady);
  if (!b.reuses()) return;
  b.stage("taken", kTurn);
  b.wait(b.rank, kTaken);
  b.post(kConsumed);
}

// Every rank's slot has its block. Ranks that no library serves read all blocks. An island's ranks take the blocks of the others by turns, and
// spread these and their own by the library's broadcast.
// So the device fills a slot behind the broadcasts of what came from all others kAhead chunks before. Each of the others had then read what it
// reads of the chunk kAhead chunks before that one. There are so many slots, so an island's ranks need not be told, unless blocks may be empty.
void plan_shared_all_gather(Builder &b) {
  // Where a device does not reach the slots of others, each block that it takes needs scratch of a chunk: of four, or smaller chunks.
  uint64_t taken = 1;
  for (size_t h = 0; h <= b.others; ++h)
    if (b.clusters.library[h]) {
      const size_t size = b.clusters.size(h), others = static_cast<size_t>(b.world) - size;
      taken = std::max<uint64_t>(taken, (others + size - 1) / size);
    }
  b.choose_island_chunk({(taken + 3) / 4, 1});
  b.need_ring(b.plan.chunk);
  const size_t g = b.cluster, clusters = b.others + 1;
  const Range all = b.whole();
  const auto mine = b.extent(Memory::Input, 0, all);
  const auto block = [&](int r) { return b.extent(Memory::Output, static_cast<uint32_t>(r), all); };
  const auto output = [](int r) { return Builder::output(static_cast<uint32_t>(r), 0); };
  const Span input = Builder::input(0, 0), own = b.ring(b.rank, 0);
  const auto each_reader = [&](auto f) {
    for (size_t i = 0; i < clusters; ++i) {
      const size_t h = (g + i) % clusters;
      if (b.clusters.library[h]) {
        if (h != g) f(b.taker(h));
        continue;
      }
      for (const int q : b.clusters.members[h])
        if (q != b.rank) f(q);
    }
  };

  if (!b.library) {
    b.stage("copy in", 0);
    each_reader([&](int q) { b.wait_reuse(q, kConsumed); });
    b.move(mine, input, own);
    b.post(kCopied);
    b.move(mine, input, output(b.rank), false, b.stream);
    b.stage("copy out", kTurn);
    for (int i = 1; i < b.world; ++i) {
      const int q = (b.rank + i) % b.world;
      b.wait(q, kCopied);
      b.move(block(q), b.ring(q, 0), output(q), false, b.stream);
    }
    return b.post(kConsumed);
  }

  const std::vector<int> outside = b.outside();
  const auto spread = [&](int r, size_t from) {
    b.call(IslandCall::Broadcast, When::Always, block(r), output(r), output(r), static_cast<int>(from));
  };
  Takes takes(b);
  for (size_t i = b.position; i < outside.size(); i += b.count)
    takes.add(outside[i], block(outside[i]), 0, output(outside[i]));
  const uint32_t ahead = ahead_of(b);
  const bool gated = takes.any() || b.varying;
  b.device_stage("copy out", ahead);
  b.together();
  if (gated) b.wait(b.rank, kReady);
  takes.copy();
  for (size_t i = 0; i < outside.size(); ++i) spread(outside[i], i % b.count);
  b.device_stage("copy in", 0, true);
  b.move(mine, input, own);
  b.post(kStaged);
  b.device_stage("island", 0);
  b.together();
  b.move(mine, input, output(b.rank));
  for (size_t j = 0; j < b.count; ++j) spread(b.members[j], j);

  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  if (!gated) return;
  b.stage("collect", kTurn);
  takes.arrive();
  // Of blocks with sizes of their own, another's that has come says nothing of this rank's.
  if (b.varying) each_reader([&](int q) { b.wait_reuse(q, kConsumed, ahead); });
  b.post(kReady);
  if (!takes.any() || !b.reuses()) return;
  // In this turn the device has staged a chunk that it copies in behind those it took of this one.
  b.stage("taken", ahead);
  b.post(kConsumed);
}

}  // namespace isthmus::plan
