// Templates of the collectives that only move bytes, of the barrier, and of send and recv.
#include <algorithm>

#include "plan/builder.hpp"

namespace isthmus::plan {

// Between clusters the root sends every other cluster its part of the chunk, and those clusters exchange their parts. So the root sends each byte
// once, whatever the number of clusters. A small message goes whole to the first rank of each cluster.
void plan_broadcast(Builder &b) {
  if (b.shared_slots) return plan_shared_broadcast(b);
  if (b.across_hosts && b.request.bytes > b.request.small_bytes) return plan_hosts_broadcast(b);
  if (b.library) return plan_island_broadcast(b);
  b.libraries() ? b.choose_island_chunk() : b.choose_chunk(1);
  const int root = b.request.root;
  const size_t home = b.clusters.of[static_cast<size_t>(root)], g = b.cluster, clusters = b.others + 1;
  const bool small = b.request.bytes <= b.request.small_bytes, shared = b.count > 1;
  const auto domains = b.others && !small ? domains_of(b, static_cast<ptrdiff_t>(home)) : std::vector<Range>(clusters);
  // What rank j of cluster h takes of the part of `domain`; h == domain: from the root.
  const auto piece = [&](size_t h, size_t j, size_t domain) -> Range {
    if (!small) return share_of(b, domains, h, j, domain);
    return h == domain && j == 0 ? b.whole() : Range{};
  };
  const Memory known = b.rank == root ? Memory::Input : Memory::Output;
  const auto ext = [&](Range r) { return b.extent(known, 0, r); };
  const auto output = [](Range r) { return Builder::output(0, r.begin); };
  if (shared) b.need_ring(b.plan.chunk);

  if (b.rank == root) {
    b.stage("copy in", 0);
    for (size_t i = 1; i < clusters; ++i) {
      const size_t h = (g + i) % clusters;
      for (size_t j = 0; j < b.clusters.size(h); ++j) {
        const Range r = piece(h, j, h);
        b.send(b.at(h, j), ext(r), Builder::input(0, r.begin));
      }
    }
    if (shared) {
      b.each_other_member([&](int q) { b.wait_reuse(q, kConsumed); });
      b.move(ext(b.whole()), Builder::input(0, 0), b.ring(b.rank, 0));
      b.post(kCopied);
    }
    b.move(ext(b.whole()), Builder::input(0, 0), output(b.whole()), false, b.stream);
    return;
  }
  if (g == home) {
    b.stage("copy out", std::min(1u, b.depth));
    b.wait(root, kCopied);
    b.move(ext(b.whole()), b.ring(root, 0), output(b.whole()), false, b.stream);
    b.post(kConsumed);
    return;
  }
  const auto landing = [&](Range r) { return shared ? b.ring(b.rank, r.begin) : output(r); };
  b.stage("take", 0);
  if (shared) b.each_other_member([&](int q) { b.wait_reuse(q, kConsumed); });
  const Range mine = piece(g, b.position, g);
  const Span token = Builder::scratch(b.libraries() ? b.need_scratch(kTokenBytes) : 0);
  b.recv(root, ext(mine), landing(mine));
  if (b.acknowledged(home)) b.send_token(root, ext(mine), token);
  if (shared) b.move(ext(mine), landing(mine), output(mine));
  for (size_t i = 1; i < clusters; ++i) {
    const size_t h = (g + i) % clusters;
    if (h == home) continue;
    for (size_t j = 0; j < b.clusters.size(h); ++j) {
      const Range x = intersect(mine, piece(h, j, g));
      b.send(b.at(h, j), ext(x), output(x));
    }
  }
  b.stage("collect", std::min(b.ahead, b.depth));
  for (size_t i = 1; i < clusters; ++i) {
    const size_t d = (g + clusters - i) % clusters;
    if (d == home) continue;
    const Range p = piece(g, b.position, d);
    for (size_t j = 0; j < b.clusters.size(d); ++j) {
      const Range x = intersect(p, piece(d, j, d));
      b.recv(b.at(d, j), ext(x), landing(x));
      if (b.acknowledged(d)) b.send_token(b.at(d, j), ext(x), token);
    }
    if (shared) b.move(ext(p), landing(p), output(p));
  }
  if (!shared) return;
  b.post(kReduced);
  b.stage("copy out", std::min(b.ahead + 1, b.depth));
  b.each_other_member([&](int q) {
    const size_t j = b.clusters.at[static_cast<size_t>(q)];
    b.wait(q, kReduced);
    for (size_t d = 0; d < clusters; ++d) {
      const Range r = piece(g, j, d);
      b.move(ext(r), b.ring(q, r.begin), output(r), false, b.stream);
    }
  });
  b.post(kConsumed);
}

// all_to_all, gather and scatter: every byte has one reader, so nothing is saved by sharing. Inside a cluster a byte goes through slots, between
// clusters straight from input to output. A rank of a v-collective knows its own sizes only, and waits for what exists. Blocks that stay in a
// island whose library moves them are left out (plan_inside).
void plan_exchange(Builder &b) {
  const Collective c = b.request.collective;
  const bool gathers = gathers_to_root(c), scatters = scatters_from_root(c);
  const int root = b.request.root;
  b.choose_chunk(gathers ? 1 : scatters ? std::max<size_t>(b.clusters.largest - 1, 1) : static_cast<size_t>(b.world) - 1);
  const uint64_t chunk = b.plan.chunk;
  const bool gives = reads_input(c, b.rank, root), takes = writes_output(c, b.rank, root);
  const auto left_out = [&](int q) { return b.stays(q) && (q != b.rank || (!gathers && !scatters)); };
  const auto gives_to = [&](int q) { return gives && (!gathers || q == root) && !left_out(q); };
  const auto takes_from = [&](int q) { return takes && (!scatters || q == root) && !left_out(q); };
  const auto in_block = [&](int q) { return gathers ? 0u : static_cast<uint32_t>(q); };
  const auto out_block = [&](int q) { return scatters ? 0u : static_cast<uint32_t>(q); };
  const auto to = [&](int q) { return b.extent(Memory::Input, in_block(q), b.whole()); };
  const auto from = [&](int q) { return b.extent(Memory::Output, out_block(q), b.whole()); };
  // Region of the slot of `owner` for `reader`: by position in the cluster, without the owner.
  const auto region = [&](int owner, int reader) {
    if (gathers) return uint64_t{0};
    const size_t o = b.clusters.at[static_cast<size_t>(owner)], r = b.clusters.at[static_cast<size_t>(reader)];
    return chunk * (r < o ? r : r - 1);
  };
  const bool staged = c == Collective::AllToAll && b.request.in_place;
  const auto each_outside = [&](auto f) {
    const auto world = static_cast<size_t>(b.world);
    for (size_t i = 1; i < world; ++i) {
      const auto q = static_cast<int>((static_cast<size_t>(b.rank) + i) % world);
      if (b.clusters.of[static_cast<size_t>(q)] != b.cluster) f(q);
    }
  };
  // The same for all who share the memory: that of one island alone, or of several.
  if (std::any_of(b.members.begin(), b.members.end(), [&](int q) { return q != b.rank && !left_out(q); }))
    b.need_ring(gathers ? chunk : (b.count - 1) * chunk);
  // Also of a rank that is alone in its cluster: other clusters may stand in memory that it shares, and compare with all who are there.
  b.plan.pairwise_sizes = c == Collective::AllToAllV;

  b.stage("copy in", 0);
  each_outside([&](int q) {
    if (!gives_to(q)) return;
    Span source = Builder::input(in_block(q), 0);
    if (staged) {  // in place, the block that arrives lands here
      source = Builder::scratch(b.need_scratch(chunk));
      b.move(to(q), Builder::input(in_block(q), 0), source);
    }
    b.send(q, to(q), source);
  });
  bool any = false;
  b.each_other_member([&](int q) {
    if (!gives_to(q)) return;
    any = true;
    b.wait_reuse(q, kConsumed, to(q));
    b.move(to(q), Builder::input(in_block(q), 0), b.ring(b.rank, region(b.rank, q)));
  });
  if (any) b.post(kCopied);

  // One turn later; with few slots in the same one, so that staged blocks are known to have been taken before they are
  // overwritten: whoever answers with chunk c + 2 (c + 1) has taken chunk c.
  b.stage("copy out", c == Collective::AllToAll && b.others ? (b.depth >= 3 ? b.ahead : 0u) : std::min(1u, b.depth));
  if (gives_to(b.rank) && takes_from(b.rank))
    b.move(to(b.rank), Builder::input(in_block(b.rank), 0), Builder::output(out_block(b.rank), 0), false, b.stream);
  any = false;
  b.each_other_member([&](int q) {
    if (!takes_from(q)) return;
    any = true;
    b.wait(q, kCopied, from(q));
    b.move(from(q), b.ring(q, region(q, b.rank)), Builder::output(out_block(q), 0), false, b.stream);
  });
  if (any) b.post(kConsumed);
  each_outside([&](int q) {
    if (takes_from(q)) b.recv(q, from(q), Builder::output(out_block(q), 0));
  });
}

// Counters inside a cluster; between clusters the first ranks meet in ceil(log2 k) rounds (dissemination).
void plan_barrier(Builder &b) {
  constexpr size_t kAllWait = 16;  // up to here every member waits for every other: one hop
  b.plan.chunks = 1;
  b.plan.chunk = kLine;
  const bool direct = b.others == 0 && b.count <= kAllWait;
  b.stage("arrive", 0);
  if (b.count > 1 && (direct || b.position > 0)) b.post(kCopied);
  if (direct || b.position == 0) b.each_other_member([&](int q) { b.wait(q, kCopied); });
  if (direct) return;
  if (b.position > 0) {
    b.stage("leave", 0);
    b.wait(b.members[0], kReduced);
    return;
  }
  b.stage("exchange", 0);
  const size_t clusters = b.others + 1;
  if (b.others) {
    b.plan.slots = 1;
    const Extent token{Memory::Scratch, 0, 0, 0, kTokenBytes};
    const Span out = Builder::scratch(b.need_scratch(kTokenBytes)), in = Builder::scratch(b.need_scratch(kTokenBytes));
    for (size_t step = 1; step < clusters; step *= 2) {
      b.send_token(b.at((b.cluster + step) % clusters, 0), token, out);
      b.recv_token(b.at((b.cluster + clusters - step) % clusters, 0), token, in);
    }
  }
  if (b.count > 1) b.post(kReduced);
}

void plan_point_to_point(Builder &b) {
  b.choose_chunk(1);
  b.plan.slots = 0;
  const bool sends = b.request.collective == Collective::Send;
  b.stage(sends ? "send" : "receive", 0);
  if (sends) b.send(b.request.root, b.extent(Memory::Input, 0, b.whole()), Builder::input(0, 0));
  else b.recv(b.request.root, b.extent(Memory::Output, 0, b.whole()), Builder::output(0, 0));
}

}  // namespace isthmus::plan
