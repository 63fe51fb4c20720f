// Templates of ranks that a vendor's library serves: the device list calls the library, and the host list carries pieces across the bridge.
//
// all_reduce between islands:
//   1. A reduce-scatter of every chunk gives rank j of an island of g ranks the j-th of g equal pieces.
//   2. The owners of a segment, one in every island, exchange the segment and round it (sum_share_of).
//   3. An all-gather spreads the results in the island.
// A last chunk that is shorter goes piece by piece, by reduce and broadcast. Mostly the short chunk is one piece (choose_island_chunk).
//
// The device works in the plan's one order: copy in of chunks 0 to kIslandAhead - 1, then copy out of chunk c before copy in of chunk c + kIslandAhead. So
// as one queue the device never waits for what stands behind it. Copies in stand on the second stream, behind the reduce-scatter of their
// chunk, beside the copy out and the all-gather of an earlier chunk.
//
// So it is in all of these collectives. Sums that have no place in the user's memory take turns through memory of the device, one place a slot: the
// sum of chunk c + slots comes behind a gate that the host opens after it has seen that chunk c lies in its slot.
#include <algorithm>

#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

Range piece(const Builder &b, size_t cluster, size_t j) { return equal_piece(b.whole(), b.clusters.size(cluster), j); }

// Where every rank has a piece of `pieces` chunks in its slot. `else_all`: where a rank without a library may have whole chunks, in its slot or its
// frames.
SlotShare share_of_pieces(const Builder &b, uint64_t pieces, uint64_t else_all) {
  size_t smallest = b.clusters.largest;
  for (size_t h = 0; h <= b.others; ++h) {
    if (!b.clusters.library[h]) return {else_all, 1};
    smallest = std::min(smallest, b.clusters.size(h));
  }
  return {pieces, smallest};
}

// The contributions of all clusters to `done`, in order: scratch for what comes from the others, and `own` for this rank's cluster.
// receive(h, at, wide, partial) receives the part of cluster h at that place of scratch.
template <class F>
std::vector<Span> contributions(Builder &b, Range done, Span own, F receive) {
  std::vector<Span> out;
  for (size_t h = 0; h <= b.others; ++h) {
    if (h == b.cluster) {
      out.push_back(b.contribution(h, own));
      continue;
    }
    const bool partial = !b.clusters.library[h] && b.clusters.size(h) > 1;
    const uint64_t wide = partial ? b.ratio : 1, at = b.need_scratch(done.size() * wide);
    out.push_back(b.contribution(h, Builder::scratch(at, partial)));
    receive(h, at, wide, partial);
  }
  return out;
}

// Small messages: the library sums, the island's first rank crosses the bridge, the library spreads.
void small_all_reduce(Builder &b) {
  b.plan.chunk = (b.request.bytes + kLine - 1) / kLine * kLine;
  b.plan.chunks = b.plan.slots = 1;
  const Range all = b.whole();
  const auto e = b.extent(Memory::Input, 0, all);
  const Span mine = b.ring(b.rank, 0), result = b.ring(b.rank, all.size());
  const bool leader = b.position == 0;
  if (leader) b.need_ring(2 * all.size());
  leader_stage(b, e, mine, result);
  if (!leader) return;
  b.stage("send", 0);
  b.wait(b.rank, kStaged);
  for (size_t i = 1; i <= b.others; ++i) b.send(b.at((b.cluster + i) % (b.others + 1), 0), e, mine);
  b.stage("finish", 0);
  const auto sources = contributions(b, all, mine, [&](size_t h, uint64_t at, uint64_t, bool partial) {
    b.recv(b.at(h, 0), e, Builder::scratch(at, partial));
  });
  b.reduce(e, sources, {}, result, false);
  b.post(kReady);
}

}  // namespace

void leader_stage(Builder &b, Extent e, Span mine, Span result) {
  const Span input = Builder::input(0, 0), output = Builder::output(0, 0);
  b.device_stage("island", 0);
  b.call(IslandCall::AllReduce, When::Always, e, input, output);
  if (b.position == 0) {
    b.move(e, output, mine);
    b.post(kStaged);
    b.wait(b.rank, kReady);
    b.move(e, result, output);
  }
  b.call(IslandCall::Broadcast, When::Always, e, output, output, 0);
}

Range equal_piece(Range part, size_t ranks, size_t j) {
  const uint64_t size = part.size() / ranks;
  return {part.begin + j * size, part.begin + (j + 1) * size};
}

void scatter_sum(Builder &b, uint32_t block, Range part, Span to, When when) {
  const auto call = [&](IslandCall what, size_t j) {
    const Range r = equal_piece(part, b.count, j);
    b.call(what, when, b.extent(Memory::Input, block, r), Builder::input(block, r.begin), to, static_cast<int>(j));
  };
  if (when == When::FullChunk) return call(IslandCall::ReduceScatter, 0);
  for (size_t j = 0; j < b.count; ++j) call(IslandCall::Reduce, j);
}
void scatter_sum(Builder &b, uint32_t block, Span to, When when) { scatter_sum(b, block, b.whole(), to, when); }

void gather_pieces(Builder &b, Memory of, Range part, Span all) {
  const auto at = [&](uint64_t begin) {
    Span place = all;
    place.base += begin;
    return place;
  };
  const Range first = equal_piece(part, b.count, 0), mine = equal_piece(part, b.count, b.position);
  b.call(IslandCall::AllGather, When::FullChunk, b.extent(of, 0, first), at(mine.begin), at(part.begin));
  for (size_t j = 0; j < b.count; ++j) {
    const Range r = equal_piece(part, b.count, j);
    b.call(IslandCall::Broadcast, When::PartChunk, b.extent(of, 0, r), at(r.begin), at(r.begin), static_cast<int>(j));
  }
}
void gather_pieces(Builder &b, Memory of, Span all) { gather_pieces(b, of, b.whole(), all); }

Range piece_at(const Builder &b, size_t h, size_t j) {
  return b.clusters.library[h] ? piece(b, h, j) : piece_of(b.whole(), b.clusters.size(h), j);
}

Range share_of(const Builder &b, const std::vector<Range> &domains, size_t h, size_t j, size_t domain) {
  if (b.clusters.library[h]) return intersect(domains[domain], piece(b, h, j));
  return piece_of(domains[domain], b.clusters.size(h), j);
}

bool sums_by_domains(const Builder &b) { return b.libraries() && b.others > 1; }
Range sum_share_of(const Builder &b, const std::vector<Range> &domains, size_t h, size_t j, size_t domain) {
  return sums_by_domains(b) ? piece_of(domains[domain], b.clusters.size(h), j) : share_of(b, domains, h, j, domain);
}

// The parts of the root's chunk come in by the slots of the ranks that take them, as in plan_broadcast(). The library spreads the parts. The
// root sends from its slot, and so do ranks that pass their part on. Where the slot is used again, the taker acknowledges the part.
void plan_island_broadcast(Builder &b) {
  b.choose_island_chunk();
  const int root = b.request.root;
  const size_t home = b.clusters.of[static_cast<size_t>(root)], g = b.cluster, clusters = b.others + 1;
  const bool small = b.request.bytes <= b.request.small_bytes;
  const auto domains = !small ? domains_of(b, static_cast<ptrdiff_t>(home)) : std::vector<Range>(clusters);
  const auto part = [&](size_t h, size_t j, size_t domain) -> Range {
    if (!small) return share_of(b, domains, h, j, domain);
    return h == domain && j == 0 ? b.whole() : Range{};
  };
  const Memory known = b.rank == root ? Memory::Input : Memory::Output;
  const auto ext = [&](Range r) { return b.extent(known, 0, r); };
  const Span output = Builder::output(0, 0);
  const Span token_out = Builder::scratch(b.need_scratch(kTokenBytes)),
             token_in = Builder::scratch(b.need_scratch(kTokenBytes));

  if (g == home) {
    const int at = static_cast<int>(b.clusters.at[static_cast<size_t>(root)]);
    b.device_stage("spread", 0);
    if (b.rank == root) {
      b.need_ring(b.plan.chunk);
      b.wait_reuse(b.rank, kReady);
      b.move(ext(b.whole()), Builder::input(0, 0), b.ring(b.rank, 0));
      b.post(kStaged);
      b.move(ext(b.whole()), Builder::input(0, 0), output);
    }
    b.call(IslandCall::Broadcast, When::Always, ext(b.whole()), output, output, at);
    if (b.rank != root) return;
    const auto each_taker = [&](auto f) {
      for (size_t i = 1; i < clusters; ++i) {
        const size_t h = (g + i) % clusters;
        for (size_t j = 0; j < b.clusters.size(h); ++j) f(b.at(h, j), part(h, j, h));
      }
    };
    b.stage("send", 0);
    b.wait(b.rank, kStaged);
    each_taker([&](int q, Range x) { b.send(q, ext(x), b.ring(b.rank, x.begin)); });
    b.stage("acknowledged", 2);
    if (!b.reuses()) return;
    each_taker([&](int q, Range x) { b.recv_token(q, ext(x), token_in); });
    b.post(kReady);  // to be filled again
    return;
  }

  const Range mine = small ? (b.position == 0 ? b.whole() : Range{}) : piece(b, g, b.position);
  const auto slot = [&](Range r) { return b.ring(b.rank, r.begin - mine.begin); };
  const auto outward = [&](auto f) {  // those who take a part of what I have of the root
    for (size_t i = 1; i < clusters; ++i) {
      const size_t h = (g + i) % clusters;
      if (h == home) continue;
      for (size_t j = 0; j < b.clusters.size(h); ++j) f(b.at(h, j), intersect(part(g, b.position, g), part(h, j, g)));
    }
  };
  b.need_ring(mine.size());
  b.device_stage("copy out", 0);
  b.together();
  if (!mine.empty()) {
    b.wait(b.rank, kReady);
    b.move(ext(mine), slot(mine), Builder::output(0, mine.begin));
    if (b.reuses()) b.post(kTaken);
  }
  if (small) b.call(IslandCall::Broadcast, When::Always, ext(b.whole()), output, output, 0);
  else gather_pieces(b, known, output);
  if (mine.empty()) return;

  b.stage("take", 0);
  b.wait_reuse(b.rank, kTaken);
  const Range own = part(g, b.position, g);
  b.recv(root, ext(own), slot(own));
  if (b.acknowledged(home)) b.send_token(root, ext(own), token_out);
  outward([&](int q, Range x) { b.send(q, ext(x), slot(x)); });
  b.stage("collect", 1);
  for (size_t i = 1; i < clusters; ++i) {
    const size_t d = (g + clusters - i) % clusters;
    if (d == home) continue;
    for (size_t j = 0; j < b.clusters.size(d); ++j) {
      const Range x = intersect(part(g, b.position, d), part(d, j, d));
      b.recv(b.at(d, j), ext(x), slot(x));
      if (b.acknowledged(d)) b.send_token(b.at(d, j), ext(x), token_out);
    }
  }
  b.post(kReady);
  b.stage("acknowledged", 2);
  if (b.reuses()) outward([&](int q, Range x) { b.recv_token(q, ext(x), token_in); });
}

void plan_island_reduce(Builder &b) {
  const int root = b.request.root;
  const size_t home = b.clusters.of[static_cast<size_t>(root)], g = b.cluster;
  const bool small = b.request.bytes <= b.request.small_bytes, at_home = g == home;
  b.choose_island_chunk(share_of_pieces(b, 1, 1));
  // Of a small message one rank of each cluster has all of it: the root, and the first ones.
  const auto leader = [&](size_t h) { return h == home ? b.clusters.at[static_cast<size_t>(root)] : 0; };
  const auto part = [&](size_t h, size_t j) -> Range {
    return !small ? piece_at(b, h, j) : j == leader(h) ? b.whole() : Range{};
  };
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const Range mine = part(g, b.position);
  const auto slot = [&](Range r) { return b.ring(b.rank, r.begin - mine.begin); };
  const uint64_t place = small ? b.plan.chunk : mine.size();
  const Span sum = Builder::device(b.need_device(place * b.plan.slots), place);
  const Span token_out = Builder::scratch(b.need_scratch(kTokenBytes)),
             token_in = Builder::scratch(b.need_scratch(kTokenBytes));
  b.need_ring(mine.size());

  if (at_home) {  // the pieces come together at the root: in its output, and elsewhere in memory that nobody reads
    b.device_stage("copy out", std::min(kIslandAhead, b.plan.chunks));
    b.together();
    const uint64_t at = b.rank == root || small ? 0 : b.need_device(b.plan.chunk);
    const auto gathered = [&](uint64_t begin) {
      return b.rank == root ? Builder::output(0, begin) : Builder::device(at + begin);
    };
    if (!mine.empty()) {
      b.wait(b.rank, kReady);
      b.move(ext(mine), slot(mine), gathered(mine.begin));
    }
    if (!small) gather_pieces(b, Memory::Input, gathered(0));
  }
  b.device_stage("island", 0);
  b.together();
  if (!at_home && !mine.empty()) b.wait_reuse(b.rank, kReady);
  if (small)
    b.call(IslandCall::Reduce, When::Always, ext(b.whole()), Builder::input(0, 0), sum, static_cast<int>(leader(g)));
  else
    for (const When when : kFullAndPart) scatter_sum(b, 0, sum, when);
  if (mine.empty()) return;
  b.device_stage("copy in", 0, true);
  b.move(ext(mine), sum, slot(mine));
  b.post(kStaged);

  if (!at_home) {
    b.stage("send", 0);
    b.wait(b.rank, kStaged);
    const auto each_finisher = [&](auto f) {
      for (size_t j = 0; j < b.clusters.size(home); ++j) f(b.at(home, j), intersect(mine, part(home, j)));
    };
    each_finisher([&](int q, Range x) { b.send(q, ext(x), slot(x)); });
    b.stage("acknowledged", 2);
    if (!b.reuses()) return;
    each_finisher([&](int q, Range x) { b.recv_token(q, ext(x), token_in); });
    b.post(kReady);  // to be filled again
    return;
  }
  b.stage("finish", 0);
  b.wait(b.rank, kStaged);
  const auto sources = contributions(b, mine, slot(mine), [&](size_t h, uint64_t at, uint64_t wide, bool partial) {
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = intersect(mine, part(h, j));
      b.recv(b.at(h, j), ext(x), Builder::scratch(at + (x.begin - mine.begin) * wide, partial));
      if (b.reuses() && (partial || b.clusters.library[h])) b.send_token(b.at(h, j), ext(x), token_out);
    }
  });
  b.reduce(ext(mine), sources, {}, slot(mine), false);
  b.post(kReady);
}

// The library sums every block. A block of another island is summed in pieces, each of which crosses from the rank that got it. A block of the
// own island is summed to the rank that gets the block, where what came from the others is added. Slots are free again behind the gate of a
// later chunk, which the host opens after it has heard that the slot's frames were taken.
void plan_island_reduce_scatter(Builder &b) {
  const auto world = static_cast<size_t>(b.world);
  b.choose_island_chunk(share_of_pieces(b, world, world - 1));
  const Range all = b.whole(), mine = piece(b, b.cluster, b.position);
  const auto ext = [&](int block, Range r) { return b.extent(Memory::Input, static_cast<uint32_t>(block), r); };
  const std::vector<int> outside = b.outside();
  // In a slot, and in the device's memory where the library sums: my block, then the pieces of the blocks outside.
  const auto place = [&](size_t i) { return all.size() + i * mine.size(); };
  const auto region = [&](size_t i) { return b.ring(b.rank, place(i)); };
  const Span own = b.ring(b.rank, 0);
  const uint64_t whole = place(outside.size()), sums = b.need_device(whole * b.plan.slots);
  b.need_ring(whole);
  const auto sum = [&](uint64_t at) { return Builder::device(sums + at, whole); };
  const Span token_out = Builder::scratch(b.need_scratch(kTokenBytes)),
             token_in = Builder::scratch(b.need_scratch(kTokenBytes));

  b.device_stage("copy out", std::min(kIslandAhead, b.plan.chunks));
  b.together();
  b.wait(b.rank, kReady);
  b.move(ext(b.rank, all), own, Builder::output(0, 0));
  b.device_stage("island", 0);
  b.together();
  for (const When when : kFullAndPart)
    for (size_t i = 0; i < outside.size(); ++i) scatter_sum(b, static_cast<uint32_t>(outside[i]), sum(place(i)), when);
  for (size_t j = 0; j < b.count; ++j)
    b.call(IslandCall::Reduce, When::Always, ext(b.members[j], all), Builder::input(static_cast<uint32_t>(b.members[j]), 0),
           sum(0), static_cast<int>(j));
  b.device_stage("copy in", 0, true);
  b.move_for(When::FullChunk, {Memory::Scratch, 0, 0, 0, whole}, sum(0), own);
  b.move_for(When::PartChunk, ext(b.rank, all), sum(0), own);
  for (size_t i = 0; i < outside.size(); ++i) b.move_for(When::PartChunk, ext(outside[i], mine), sum(place(i)), region(i));
  b.post(kStaged);

  b.stage("send", 0);
  b.wait(b.rank, kStaged);
  for (size_t i = 0; i < outside.size(); ++i) b.send(outside[i], ext(outside[i], mine), region(i));
  b.stage("finish", 1);
  const auto sources = contributions(b, all, own, [&](size_t h, uint64_t at, uint64_t wide, bool partial) {
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = piece_at(b, h, j);
      b.recv(b.at(h, j), ext(b.rank, x), Builder::scratch(at + x.begin * wide, partial));
      if (b.reuses() && (partial || b.clusters.library[h])) b.send_token(b.at(h, j), ext(b.rank, x), token_out);
    }
  });
  b.reduce(ext(b.rank, all), sources, {}, own, false);
  b.post(kReady);
  b.stage("acknowledged", 2);
  if (!b.reuses()) return;
  for (const int d : outside) b.recv_token(d, ext(d, mine), token_in);
}

void plan_island_all_reduce(Builder &b) {
  if (b.request.bytes <= b.request.small_bytes) return small_all_reduce(b);
  b.choose_island_chunk(share_of_pieces(b, 1, 1));
  const auto domains = domains_of(b);
  const size_t g = b.cluster, clusters = b.others + 1;
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const auto mine = [&](size_t domain) { return sum_share_of(b, domains, g, b.position, domain); };
  // What the library sums at one time, and my pieces of it, which lie side by side in the slot.
  const std::vector<Range> parts = sums_by_domains(b) ? domains : std::vector<Range>{b.whole()};
  const auto own = [&](Range part) { return equal_piece(part, b.count, b.position); };
  const auto slot = [&](Range r) {
    const auto part =
        std::find_if(parts.begin(), parts.end(), [&](Range p) { return r.begin >= p.begin && r.begin < p.end; });
    return b.ring(b.rank, part->begin / b.count + (r.begin - own(*part).begin));
  };
  b.need_ring(b.plan.chunk / b.count);
  // f(rank, range) of the ranks of other islands that have a part of domain `owner` in common with me, the next island first.
  const auto each_peer = [&](size_t h, size_t owner, auto f) {
    for (size_t j = 0; j < b.clusters.size(h); ++j)
      if (const Range x = intersect(mine(owner), sum_share_of(b, domains, h, j, owner)); !x.empty()) f(b.at(h, j), x);
  };
  const auto each_part = [&](auto f) {
    for (const Range &p : parts)
      if (!p.empty()) f(p);
  };

  b.device_stage("copy out", std::min(kIslandAhead, b.plan.chunks));
  b.together();
  b.wait(b.rank, kReady);
  each_part([&](Range p) { b.move(ext(own(p)), slot(own(p)), Builder::output(0, own(p).begin)); });
  each_part([&](Range p) { gather_pieces(b, Memory::Input, p, Builder::output(0, 0)); });
  b.device_stage("island", 0);
  b.together();
  for (const When when : kFullAndPart)
    each_part([&](Range p) { scatter_sum(b, 0, p, Builder::output(0, own(p).begin), when); });
  b.device_stage("copy in", 0, true);
  each_part([&](Range p) { b.move(ext(own(p)), Builder::output(0, own(p).begin), slot(own(p))); });
  b.post(kStaged);

  b.stage("send", 0);
  b.wait(b.rank, kStaged);
  for (size_t i = 1; i < clusters; ++i) {
    const size_t d = (g + i) % clusters;
    each_peer(d, d, [&](int q, Range x) { b.send(q, ext(x), slot(x)); });
  }

  b.stage("finish", 1);
  const Range done = mine(g);
  const Span at_home = done.empty() ? b.ring(b.rank, 0) : slot(done);
  const auto sources = contributions(b, done, at_home, [&](size_t h, uint64_t at, uint64_t wide, bool partial) {
    each_peer(h, g,
              [&](int q, Range x) { b.recv(q, ext(x), Builder::scratch(at + (x.begin - done.begin) * wide, partial)); });
  });
  // Nobody sends of the slot any more what the result replaces: what came from the others is an answer to it.
  b.reduce(ext(done), sources, {}, at_home, false);
  for (size_t i = 1; i < clusters; ++i)
    each_peer((g + i) % clusters, g, [&](int q, Range x) { b.send(q, ext(x), slot(x)); });

  b.stage("collect", 2);
  for (size_t i = 1; i < clusters; ++i) {
    const size_t d = (g + clusters - i) % clusters;
    each_peer(d, d, [&](int q, Range x) { b.recv(q, ext(x), slot(x)); });
  }
  b.post(kReady);
}

}  // namespace isthmus::plan
