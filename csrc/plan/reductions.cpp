// Templates of the reductions. All have one shape, of five stages:
//   1. copy in    the members of a cluster copy into their slots what others will reduce;
//   2. reduce     a member reduces its cluster's partial result of a part that another cluster finishes, and sends it;
//   3. finish     a member receives partial results and finishes its own part;
//   4. collect    a member receives what other clusters finished;
//   5. copy out   a member reads its neighbours' results.
// With one cluster the stages of the bridge are empty. A sum is always reduce(partial results in island order). Each partial result is a
// reduction of ranks in order. The finisher rounds once.
#include <algorithm>

#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

// The skews of the five stages. Two rules hold:
//   - The distance from a send to the stage that takes the frame is the same for contributions and for answers, on every rank
//     (finish - reduce == collect - finish). So frames between two ranks are received in the order in which they were sent.
//   - Every skew is below the number of slots. So no rank waits for a stage that comes later in the same turn.
struct Skews {
  uint32_t copy = 0, reduce = 1, finish = 2, collect = 3, out = 3;
};
Skews skews_of(const Builder &b) {
  if (b.others == 0) return {0, 0, std::min(1u, b.depth), std::min(2u, b.depth), std::min(2u, b.depth)};
  if (b.ahead > 1) {
    const uint32_t first = b.count > 1 ? 1 : 0, last = first + 2 * b.ahead;
    return {0, first, first + b.ahead, last, last};
  }
  if (b.depth >= 3) return b.count > 1 ? Skews{} : Skews{0, 0, 1, 2, 2};
  if (b.depth == 2) return {0, 0, 1, 2, 2};
  return b.count > 1 ? Skews{0, 1, 1, 1, 1} : Skews{0, 0, 0, 0, 0};
}

// The raw contributions of the cluster from `at` on: the others' in their slots, this rank's in `own`.
std::vector<Span> raw_sources(const Builder &b, Span own, uint64_t at) {
  std::vector<Span> out;
  for (int q : b.members) out.push_back(q == b.rank ? own : b.ring(q, at));
  return out;
}

// Sources of the finishing reduction, clusters in order: `partial_of(h)` for others, the raw contributions for mine.
struct Sources {
  std::vector<Span> spans;
  std::vector<uint32_t> ends;
};
template <class F>
Sources all_sources(const Builder &b, const std::vector<Span> &raw, F partial_of) {
  if (b.others == 0) return {raw, b.clusters.group_ends};
  Sources s;
  for (size_t h = 0; h < b.clusters.members.size(); ++h) {
    if (h == b.cluster) s.spans.insert(s.spans.end(), raw.begin(), raw.end());
    else s.spans.push_back(b.contribution(h, partial_of(h)));
    s.ends.push_back(static_cast<uint32_t>(s.spans.size()));
  }
  return s;
}

// Small messages: the first rank of every cluster (the leader) reduces the cluster, sends the partial result to every other leader, and
// finishes by itself.
void leader_exchange(Builder &b) {
  const bool leader = b.position == 0;
  const Range all = b.whole();
  const auto e = b.extent(Memory::Input, 0, all);
  const Span input = Builder::input(0, 0), output = Builder::output(0, 0);
  if (b.count > 1) b.need_ring(b.plan.chunk);
  const uint64_t own_at = b.need_scratch(b.plan.chunk), mine_at = b.need_scratch(b.plan.chunk * b.wide(b.cluster));
  std::vector<uint64_t> from(b.others + 1);
  for (size_t h = 0; h <= b.others; ++h)
    if (h != b.cluster) from[h] = b.need_scratch(b.plan.chunk * b.wide(h));
  if (!leader) {
    b.stage("copy in", 0);
    b.move(e, input, b.ring(b.rank, 0), b.scaled);
    b.post(kCopied);
    b.stage("copy out", 0);
    b.wait(b.members[0], kReduced);
    b.move(e, b.ring(b.members[0], 0), output);
    return;
  }
  const Span mine = Builder::scratch(mine_at, b.sends_partials(b.cluster));
  b.stage("reduce", 0);
  if (b.count > 1) {
    const Span own = b.scaled ? Builder::scratch(own_at) : input;
    if (b.scaled) b.move(e, input, own, true);
    b.each_other_member([&](int q) { b.wait(q, kCopied); });
    b.reduce(e, raw_sources(b, own, 0), {}, mine, true);
  } else {
    // Sent from a copy: in place, the result is written while the link may still read.
    b.move(e, input, mine, b.scaled);
  }
  for (size_t i = 1; i <= b.others; ++i) b.send(b.at((b.cluster + i) % (b.others + 1), 0), e, mine);
  b.stage("finish", 0);
  std::vector<Span> sources;
  for (size_t h = 0; h <= b.others; ++h) {
    const Span of = h == b.cluster ? mine : Builder::scratch(from[h], b.sends_partials(h));
    sources.push_back(b.contribution(h, of));
    if (h != b.cluster) b.recv(b.at(h, 0), e, of);
  }
  if (b.count > 1) {
    b.reduce(e, sources, {}, b.ring(b.rank, 0), false, &output);
    b.post(kReduced);
  } else {
    b.reduce(e, sources, {}, output, false);
  }
}

}  // namespace

void plan_all_reduce(Builder &b) {
  if (b.others > 0 && b.request.bytes <= b.request.small_bytes) {
    b.plan.chunk = (b.request.bytes + kLine - 1) / kLine * kLine;
    b.plan.chunks = b.plan.slots = 1;
    return leader_exchange(b);
  }
  b.libraries() ? b.choose_island_chunk() : b.choose_chunk(1);
  const auto domains = domains_of(b);
  const auto piece = [&](size_t h, size_t j, size_t domain) { return sum_share_of(b, domains, h, j, domain); };
  const size_t g = b.cluster, clusters = b.others + 1;
  const Skews skew = skews_of(b);
  const bool shared = b.count > 1;
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  std::vector<Range> mine;
  for (size_t d = 0; d < clusters; ++d) mine.push_back(piece(g, b.position, d));
  if (shared) b.need_ring(b.plan.chunk);
  // PREMUL_SUM: my own contributions, scaled, at their place in the chunk.
  const uint64_t own_at = b.scaled ? b.need_scratch(b.plan.chunk) : 0;
  const auto own = [&](Range r) { return b.scaled ? Builder::scratch(own_at + r.begin) : Builder::input(0, r.begin); };
  const auto scale_own = [&] {
    if (!b.scaled) return;
    for (const Range &r : mine) b.move(ext(r), Builder::input(0, r.begin), own(r), true);
  };

  b.stage("copy in", skew.copy);
  if (shared) {
    // The slot's last use needs no wait, for two reasons. This rank waited in an earlier turn, in its last stage of chunk c - slots, for
    // everybody's last stage but one of that chunk. And nobody posts this chunk before its own last stage of that chunk, for which a
    // result's place waits.
    for (const Range &r : complement(b.plan.chunk, mine))
      b.move(ext(r), Builder::input(0, r.begin), b.ring(b.rank, r.begin), b.scaled);
    b.post(kCopied);
    scale_own();
  }

  b.stage(shared ? "reduce" : "send", skew.reduce);
  if (!shared) scale_own();
  if (shared && b.others > 0) b.each_other_member([&](int q) { b.wait(q, kCopied); });
  for (size_t i = 1; i < clusters; ++i) {
    const size_t d = (g + i) % clusters;
    Span from = own(mine[d]);
    if (shared && !mine[d].empty()) {
      from = Builder::scratch(b.need_scratch(mine[d].size() * b.ratio), true);
      b.reduce(ext(mine[d]), raw_sources(b, own(mine[d]), mine[d].begin), {}, from, true);
    }
    for (size_t j = 0; j < b.clusters.size(d); ++j) {
      const Range x = intersect(mine[d], piece(d, j, d));
      Span part = from;
      part.base += (x.begin - mine[d].begin) * (shared ? b.ratio : 1);
      b.send(b.at(d, j), ext(x), part);
    }
  }

  b.stage("finish", skew.finish);
  const Range done = mine[g];
  if (shared && b.others == 0) b.each_other_member([&](int q) { b.wait(q, kCopied); });
  std::vector<uint64_t> from(clusters);
  for (size_t h = 0; h < clusters; ++h) {
    if (h == g || done.empty()) continue;
    from[h] = b.need_scratch(done.size() * b.wide(h));
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = intersect(done, piece(h, j, g));
      b.recv(b.at(h, j), ext(x), Builder::scratch(from[h] + (x.begin - done.begin) * b.wide(h), b.sends_partials(h)));
    }
  }
  const Sources sources = all_sources(b, raw_sources(b, own(done), done.begin),
                                      [&](size_t h) { return Builder::scratch(from[h], b.sends_partials(h)); });
  const Span output = Builder::output(0, done.begin);
  if (shared)
    b.reduce(ext(done), sources.spans, sources.ends, b.ring(b.rank, done.begin), false, &output, b.stream && b.others == 0);
  else b.reduce(ext(done), sources.spans, sources.ends, output, false);
  // Results are sent from the output, which nobody writes again, so no slot has to wait for a link.
  for (size_t i = 1; i < clusters; ++i) {
    const size_t h = (g + i) % clusters;
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = intersect(done, piece(h, j, g));
      b.send(b.at(h, j), ext(x), Builder::output(0, x.begin));
    }
  }
  if (shared && b.others == 0) b.post(kReduced);

  b.stage("collect", skew.collect);
  for (size_t i = 1; i < clusters; ++i) {
    const size_t d = (g + clusters - i) % clusters;
    for (size_t j = 0; j < b.clusters.size(d); ++j) {
      const Range x = intersect(mine[d], piece(d, j, d));
      b.recv(b.at(d, j), ext(x), shared ? b.ring(b.rank, x.begin) : Builder::output(0, x.begin));
    }
    if (shared) b.move(ext(mine[d]), b.ring(b.rank, mine[d].begin), Builder::output(0, mine[d].begin));
  }
  if (shared && b.others > 0) b.post(kReduced);

  b.stage("copy out", skew.out);
  if (!shared) return;
  b.each_other_member([&](int q) {
    b.wait(q, kReduced);
    for (size_t d = 0; d < clusters; ++d) {
      const Range r = piece(g, b.clusters.at[static_cast<size_t>(q)], d);
      b.move(ext(r), b.ring(q, r.begin), Builder::output(0, r.begin), false, b.stream);
    }
  });
}

void plan_reduce(Builder &b) {
  if (b.shared_slots) return plan_shared_reduce(b);
  if (b.library) return plan_island_reduce(b);
  b.libraries() ? b.choose_island_chunk() : b.choose_chunk(b.others);
  const int root = b.request.root;
  const size_t home = b.clusters.of[static_cast<size_t>(root)], g = b.cluster, clusters = b.others + 1;
  const bool small = b.others > 0 && b.request.bytes <= b.request.small_bytes, shared = b.count > 1, at_home = g == home;
  const Skews skew = skews_of(b);
  // Who reduces which part of a chunk: everybody a piece; of a small message, one rank of each cluster all of it.
  const auto piece = [&](size_t h, size_t j) -> Range {
    if (!small) return piece_at(b, h, j);
    return j == (h == home ? b.clusters.at[static_cast<size_t>(root)] : 0) ? b.whole() : Range{};
  };
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const Range mine = piece(g, b.position);
  if (shared) b.need_ring(b.plan.chunk);
  const uint64_t own_at = b.scaled ? b.need_scratch(mine.size()) : 0;
  const Span own = b.scaled ? Builder::scratch(own_at) : Builder::input(0, mine.begin);
  const Span token_out = Builder::scratch(b.others ? b.need_scratch(kTokenBytes) : 0);
  const Span token_in = Builder::scratch(b.others ? b.need_scratch(kTokenBytes) : 0);
  // A link may read scratch until the frame was received: the receiver says so where the scratch is used again.
  const auto acknowledged = [&](size_t h) {
    return b.reuses() && (b.sends_partials(h) || b.scaled || b.clusters.library[h]);
  };

  b.stage("copy in", skew.copy);
  if (shared) {
    // At home the root reads last; elsewhere those who reduce do.
    if (at_home && b.rank != root) b.wait_reuse(root, kConsumed);
    if (!at_home) b.each_other_member([&](int q) { b.wait_reuse(q, kReduced); });
    for (const Range &r : complement(b.plan.chunk, {mine}))
      b.move(ext(r), Builder::input(0, r.begin), b.ring(b.rank, r.begin), b.scaled);
    b.post(kCopied);
  }
  if (!at_home) {
    b.stage(shared ? "reduce" : "send", skew.reduce);
    if (b.scaled) b.move(ext(mine), Builder::input(0, mine.begin), own, true);
    Span from = own;
    if (shared && !mine.empty()) {
      b.each_other_member([&](int q) { b.wait(q, kCopied); });
      from = Builder::scratch(b.need_scratch(mine.size() * b.ratio), true);
      b.reduce(ext(mine), raw_sources(b, own, mine.begin), {}, from, true);
    }
    for (size_t j = 0; j < b.clusters.size(home); ++j) {
      const Range x = intersect(mine, piece(home, j));
      Span part = from;
      part.base += (x.begin - mine.begin) * b.wide(g);
      b.send(b.at(home, j), ext(x), part);
    }
    if (shared) b.post(kReduced);
    b.stage("acknowledged", skew.collect);
    if (acknowledged(g))
      for (size_t j = 0; j < b.clusters.size(home); ++j)
        b.recv_token(b.at(home, j), ext(intersect(mine, piece(home, j))), token_in);
    return;
  }

  b.stage("finish", skew.finish);
  if (b.scaled) b.move(ext(mine), Builder::input(0, mine.begin), own, true);
  if (shared && !mine.empty()) b.each_other_member([&](int q) { b.wait(q, kCopied); });
  std::vector<uint64_t> from(clusters);
  for (size_t h = 0; h < clusters; ++h) {
    if (h == g || mine.empty()) continue;
    from[h] = b.need_scratch(mine.size() * b.wide(h));
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = intersect(mine, piece(h, j));
      b.recv(b.at(h, j), ext(x), Builder::scratch(from[h] + (x.begin - mine.begin) * b.wide(h), b.sends_partials(h)));
      if (acknowledged(h)) b.send_token(b.at(h, j), ext(x), token_out);
    }
  }
  const Sources sources = all_sources(b, raw_sources(b, own, mine.begin),
                                      [&](size_t h) { return Builder::scratch(from[h], b.sends_partials(h)); });
  b.reduce(ext(mine), sources.spans, sources.ends,
           b.rank == root ? Builder::output(0, mine.begin) : b.ring(b.rank, mine.begin), false);
  if (shared && b.rank != root) b.post(kReduced);

  b.stage("copy out", skew.out);
  if (!shared || b.rank != root) return;
  b.each_other_member([&](int q) {
    const Range r = piece(g, b.clusters.at[static_cast<size_t>(q)]);
    if (r.empty()) return;
    b.wait(q, kReduced);
    b.move(ext(r), b.ring(q, r.begin), Builder::output(0, r.begin), false, b.stream);
  });
  b.post(kConsumed);
}

void plan_reduce_scatter(Builder &b) {
  const auto world = static_cast<size_t>(b.world);
  if (b.shared_slots) return plan_shared_reduce_scatter(b);
  if (b.across_hosts && b.request.collective == Collective::ReduceScatter) return plan_hosts_reduce_scatter(b);
  if (plan_passed_reduce_scatter(b)) return;
  if (b.library) return plan_island_reduce_scatter(b);
  b.libraries() ? b.choose_island_chunk({world - 1, 1}) : b.choose_chunk(world - 1);
  const size_t g = b.cluster, clusters = b.others + 1;
  const bool shared = b.count > 1;
  const Skews skew = skews_of(b);
  const uint64_t chunk = b.plan.chunk;
  const auto ext = [&](int block, Range r) { return b.extent(Memory::Input, static_cast<uint32_t>(block), r); };
  const auto user = [](int block, uint64_t at) { return Builder::input(static_cast<uint32_t>(block), at); };
  // The slot of rank q has one region for every block but its own.
  const auto region = [&](int q, int block) { return static_cast<uint64_t>(block < q ? block : block - 1) * chunk; };
  const auto reduced_piece = [&](size_t h, size_t j) { return piece_at(b, h, j); };
  const Range mine = reduced_piece(g, b.position), all = b.whole();
  if (shared) b.need_ring((world - 1) * chunk);
  const uint64_t own_at = b.scaled ? b.need_scratch(world * chunk) : 0;
  const auto own = [&](int block, uint64_t at) {
    return b.scaled ? Builder::scratch(own_at + static_cast<uint64_t>(block) * chunk + at) : user(block, at);
  };
  const auto sources_of = [&](int block, uint64_t at) {
    std::vector<Span> out;
    for (int q : b.members) out.push_back(q == b.rank ? own(block, at) : b.ring(q, region(q, block) + at));
    return out;
  };
  const Span token_out = Builder::scratch(b.others ? b.need_scratch(kTokenBytes) : 0);
  const Span token_in = Builder::scratch(b.others ? b.need_scratch(kTokenBytes) : 0);
  const auto acknowledged = [&](size_t h) {
    return b.reuses() && (b.sends_partials(h) || b.scaled || b.clusters.library[h]);
  };
  const auto each_outside = [&](auto f) {  // the nearest cluster first
    for (size_t i = 1; i < clusters; ++i)
      for (int d : b.clusters.members[(g + i) % clusters]) f(d);
  };

  b.stage("copy in", skew.copy);
  if (shared) {
    b.each_other_member([&](int q) { b.wait_reuse(q, kReduced); });
    b.each_other_member([&](int q) { b.move(ext(q, all), user(q, 0), b.ring(b.rank, region(b.rank, q)), b.scaled); });
    each_outside([&](int d) {
      for (const Range &r : complement(chunk, {mine}))
        b.move(ext(d, r), user(d, r.begin), b.ring(b.rank, region(b.rank, d) + r.begin), b.scaled);
    });
    b.post(kCopied);
  }

  b.stage(shared ? "reduce" : "send", skew.reduce);
  if (shared && b.others > 0) b.each_other_member([&](int q) { b.wait(q, kCopied); });
  each_outside([&](int d) {
    if (mine.empty()) return;
    if (b.scaled) b.move(ext(d, mine), user(d, mine.begin), own(d, mine.begin), true);
    Span from = own(d, mine.begin);
    if (shared) {
      from = Builder::scratch(b.need_scratch(mine.size() * b.ratio), true);
      b.reduce(ext(d, mine), sources_of(d, mine.begin), {}, from, true);
    }
    b.send(d, ext(d, mine), from);
  });

  b.stage("finish", skew.finish);
  if (shared && b.others == 0) b.each_other_member([&](int q) { b.wait(q, kCopied); });
  if (b.scaled) b.move(ext(b.rank, all), user(b.rank, 0), own(b.rank, 0), true);
  std::vector<uint64_t> from(clusters);
  for (size_t i = 1; i < clusters; ++i) {
    const size_t h = (g + i) % clusters;
    from[h] = b.need_scratch(chunk * b.wide(h));
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = reduced_piece(h, j);
      b.recv(b.at(h, j), ext(b.rank, x), Builder::scratch(from[h] + x.begin * b.wide(h), b.sends_partials(h)));
      if (acknowledged(h)) b.send_token(b.at(h, j), ext(b.rank, x), token_out);
    }
  }
  const Sources sources =
      all_sources(b, sources_of(b.rank, 0), [&](size_t h) { return Builder::scratch(from[h], b.sends_partials(h)); });
  b.reduce(ext(b.rank, all), sources.spans, sources.ends, Builder::output(0, 0), false);
  if (shared) b.post(kReduced);

  b.stage("acknowledged", skew.collect);
  if (acknowledged(g)) each_outside([&](int d) { b.recv_token(d, ext(d, mine), token_in); });
}

}  // namespace isthmus::plan
