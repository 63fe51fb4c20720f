// Templates where libraries serve some ranks and all stand on one host. Every rank reads the slots of every other, so what is moved crosses
// without a link. A device that reaches the slots of others (Request::reach) copies out of them. For a device that does not, the host brings
// the chunk to pinned scratch. The other ranks see no difference.
//
// Counters of a rank:
//   kCopied     the chunk lies in the rank's slot
//   kReduced    the part of the sum that the rank reduces lies there too
//   kConsumed   the rank has read chunk c of all slots that it reads
// Between a rank's two lists:
//   kStaged     the device has staged a chunk in the rank's slot
//   kReady      the gate: what the device takes has come
//   kTaken      the device has read what it took
#include <algorithm>

#include "plan/takes.hpp"

namespace isthmus::plan {
namespace {

// The device has staged chunk c + kAhead when it passes the gate of chunk c, which the host opens in turn c + kTurn. A reader says in turn
// c + kAhead that it has read chunk c. The chunk's writer has to know before it opens the gate of chunk c + slots - kAhead. So the reader's turn
// has to be earlier than the turn of that gate.
constexpr uint32_t kTurn = 1, kAhead = 3;
static_assert(kLeastIslandSlots > 2 * kAhead - kTurn && kLeastIslandSlots >= 2 * kAhead);

// Calls f(range, sources, ends) for every range of `part` within which the contributions lie in the same slots. Sources stand island by island
// and rank by rank. own(range): where this rank's contribution lies.
template <class Own, class F>
void each_reduction(const Builder &b, Range part, Own own, F f) {
  std::vector<uint64_t> cuts{part.begin, part.end};
  for (int q = 0; q < b.world; ++q)
    for (const uint64_t at : {given_by(b, q).begin, given_by(b, q).end})
      if (at > part.begin && at < part.end) cuts.push_back(at);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Range r{cuts[i], cuts[i + 1]};
    std::vector<Span> sources;
    std::vector<uint32_t> ends;
    for (const auto &members : b.clusters.members) {
      for (const int q : members)
        if (const Range g = given_by(b, q); !intersect(g, r).empty())
          sources.push_back(b.contribution(cluster_of(b, q), q == b.rank ? own(r) : b.ring(q, r.begin - g.begin)));
      ends.push_back(static_cast<uint32_t>(sources.size()));
    }
    f(r, sources, ends);
  }
}

// Small messages: the library sums. Then its first rank, and every rank that no library serves, reduces what lies in all slots, each for itself.
void small_shared_all_reduce(Builder &b) {
  b.plan.chunk = (b.request.bytes + kLine - 1) / kLine * kLine;
  b.plan.chunks = b.plan.slots = 1;
  const Range all = b.whole();
  b.need_ring(2 * all.size());
  const auto e = b.extent(Memory::Input, 0, all);
  const Span input = Builder::input(0, 0), output = Builder::output(0, 0), mine = b.ring(b.rank, 0),
             result = b.ring(b.rank, all.size());
  const auto sum = [&](Span own, Span to) {
    std::vector<Span> sources;
    std::vector<uint32_t> ends;
    for (size_t h = 0; h <= b.others; ++h) {
      for (size_t j = 0; j < (b.clusters.library[h] ? 1 : b.clusters.size(h)); ++j) {
        const int q = b.at(h, j);
        if (q != b.rank) b.wait(q, kCopied);
        sources.push_back(b.contribution(h, q == b.rank ? own : b.ring(q, 0)));
      }
      ends.push_back(static_cast<uint32_t>(sources.size()));
    }
    b.reduce(e, sources, ends, to, false);
  };
  if (!b.library) {
    b.stage("copy in", 0);
    b.move(e, input, mine);
    b.post(kCopied);
    b.stage("finish", 0);
    return sum(input, output);
  }
  const bool leader = b.position == 0;
  b.device_stage("island", 0);
  b.call(IslandCall::AllReduce, When::Always, e, input, output);
  if (leader) {
    b.move(e, output, mine);
    b.post(kStaged);
    b.wait(b.rank, kReady);
    b.move(e, result, output);
  }
  b.call(IslandCall::Broadcast, When::Always, e, output, output, 0);
  if (!leader) return;
  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  b.stage("finish", 0);
  sum(mine, result);
  b.post(kReady);
}

}  // namespace

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
  if (takes.any()) {
    b.wait(b.rank, kReady);
    takes.copy();
    if (b.reuses()) b.post(kTaken);
  }
  if (small) {
    b.call(IslandCall::Broadcast, When::Always, ext(b.whole()), output, output, 0);
  } else {
    b.call(IslandCall::AllGather, When::FullChunk, ext({0, mine.size()}), Builder::output(0, mine.begin), output);
    for (size_t j = 0; j < b.count; ++j) {
      const Range r = piece_at(b, g, j);
      b.call(IslandCall::Broadcast, When::PartChunk, ext(r), Builder::output(0, r.begin), Builder::output(0, r.begin),
             static_cast<int>(j));
    }
  }
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
// reads of the chunk kAhead chunks before that one. There are so many slots, so an island's ranks need not be told.
void plan_shared_all_gather(Builder &b) {
  // Where a device does not reach the slots of others, each block that it takes needs scratch of a chunk: of four, or smaller chunks.
  uint64_t taken = 1;
  for (size_t h = 0; h <= b.others; ++h)
    if (b.clusters.library[h]) {
      const size_t size = b.clusters.size(h), others = static_cast<size_t>(b.world) - size;
      taken = std::max<uint64_t>(taken, (others + size - 1) / size);
    }
  b.choose_island_chunk((taken + 3) / 4);
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
  const uint32_t ahead = std::min(kAhead, b.plan.chunks);
  b.device_stage("copy out", ahead);
  if (takes.any()) b.wait(b.rank, kReady);
  takes.copy();
  for (size_t i = 0; i < outside.size(); ++i) spread(outside[i], i % b.count);
  b.device_stage("copy in", 0);
  b.move(mine, input, own);
  b.post(kStaged);
  b.move(mine, input, output(b.rank));
  for (size_t j = 0; j < b.count; ++j) spread(b.members[j], j);

  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  if (!takes.any()) return;
  b.stage("collect", kTurn);
  takes.arrive();
  b.post(kReady);
  if (!b.reuses()) return;
  // In this turn the device has staged a chunk that it copies in behind those it took of this one.
  b.stage("taken", ahead);
  b.post(kConsumed);
}

// Every rank reduces an equal part of the chunk in one pass over the slots of all, whatever pieces the islands make of the chunk. Then a rank
// that no library serves reads the whole result. A rank of an island reads its piece, which the library gathers.
void plan_shared_all_reduce(Builder &b) {
  if (b.request.bytes <= b.request.small_bytes) return small_shared_all_reduce(b);
  b.choose_island_chunk();
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const auto output = [](Range r) { return Builder::output(0, r.begin); };
  const auto reduced_by = [&](int q) { return piece_of(b.whole(), static_cast<size_t>(b.world), static_cast<size_t>(q)); };
  // Where the result lies in the slot of q: in the place of its own contribution where nobody else reads that, else behind it.
  const auto result_at = [&](int q) { return served(b, q) ? given_by(b, q).size() : reduced_by(q).begin; };
  for (int q = 0; q < b.world; ++q) b.need_ring(std::max(given_by(b, q).size(), result_at(q) + reduced_by(q).size()));
  const Range done = reduced_by(b.rank), mine = given_by(b, b.rank);
  const auto each_other = [&](auto f) {
    for (int i = 1; i < b.world; ++i) f((b.rank + i) % b.world);
  };
  const auto slot = [&](Range r) { return b.ring(b.rank, result_at(b.rank) + (r.begin - done.begin)); };

  if (!b.library) {
    b.stage("copy in", 0);
    each_other([&](int q) { b.wait_reuse(q, kConsumed); });
    for (const Range &r : complement(b.plan.chunk, {done}))
      b.move(ext(r), Builder::input(0, r.begin), b.ring(b.rank, r.begin));
    b.post(kCopied);
    b.stage("finish", kTurn);
    each_other([&](int q) { b.wait(q, kCopied, ext(intersect(given_by(b, q), done))); });
    each_reduction(
        b, done, [](Range r) { return Builder::input(0, r.begin); },
        [&](Range r, const auto &sources, const auto &ends) {
          const Span to = output(r);
          b.reduce(ext(r), sources, ends, slot(r), false, &to, b.stream);
        });
    b.post(kReduced);
    b.stage("copy out", kTurn + 1);
    each_other([&](int q) {
      b.wait(q, kReduced);
      b.move(ext(reduced_by(q)), b.ring(q, result_at(q)), output(reduced_by(q)), false, b.stream);
    });
    return b.post(kConsumed);
  }

  const Range first{0, mine.size()};  // what each rank gives to, or gets of, a call with equal counts
  const auto each_piece = [&](auto f) {
    for (size_t j = 0; j < b.count; ++j) f(piece_at(b, b.cluster, j), static_cast<int>(j));
  };
  const uint32_t ahead = std::min(kAhead, b.plan.chunks);
  Takes takes(b);
  each_other([&](int q) {
    const Range x = intersect(reduced_by(q), mine);
    takes.add(q, ext(x), result_at(q) + (x.begin - reduced_by(q).begin), output(x));
  });
  b.device_stage("copy out", ahead);
  b.wait(b.rank, kReady);
  const Range own = intersect(done, mine);
  b.move(ext(own), slot(own), output(own));
  takes.copy();
  b.call(IslandCall::AllGather, When::FullChunk, ext(first), output(mine), Builder::output(0, 0));
  each_piece([&](Range r, int j) { b.call(IslandCall::Broadcast, When::PartChunk, ext(r), output(r), output(r), j); });
  b.device_stage("island", 0);
  b.call(IslandCall::ReduceScatter, When::FullChunk, ext(first), Builder::input(0, 0), output(mine));
  each_piece([&](Range r, int j) {
    b.call(IslandCall::Reduce, When::PartChunk, ext(r), Builder::input(0, r.begin), output(r), j);
  });
  b.device_stage("copy in", 0, true);
  b.move(ext(mine), output(mine), b.ring(b.rank, 0));
  b.post(kStaged);

  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  b.stage("finish", kTurn);
  each_other([&](int q) { b.wait(q, kCopied, ext(intersect(given_by(b, q), done))); });
  each_reduction(
      b, done, [&](Range r) { return b.ring(b.rank, r.begin - mine.begin); },
      [&](Range r, const auto &sources, const auto &ends) { b.reduce(ext(r), sources, ends, slot(r), false); });
  b.post(kReduced);
  b.stage("collect", kTurn + 1);
  takes.arrive(kReduced);
  // Behind this gate the device fills the slot of a chunk that comes `ahead` later.
  each_other([&](int q) { b.wait_reuse(q, kConsumed, ahead); });
  b.post(kReady);
  if (!b.reuses()) return;
  b.stage("taken", ahead);
  b.post(kConsumed);
}

}  // namespace isthmus::plan
