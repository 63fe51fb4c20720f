// An all_reduce between clusters that are far apart, so that a way counts for more than some bytes. It goes one way:
//
//   turn of chunk c    a member of a cluster          reduces its piece of the cluster's contributions, and sends it to all other clusters
//   `ahead` turns on   the same                       has the pieces of all others, and finishes
//   and in that turn   its neighbours                 read what it has finished
//
// So a cluster sends its whole sum to each other one. In pieces (plan_all_reduce) it sends less where there are more than two, or where partial
// sums are wider than results; and then the results, which is a second way.
//
// Every cluster finishes the same sums, reduce(partial results in island order), and so has the same bits.
//
// REUSE. A link may read a frame's memory until the frame was taken. The memory of chunk c is written again for chunk c + slots. By then this rank has
// taken frames that each other one sent behind its turn of chunk c + ahead, in which it took those of chunk c: slots > 2 * ahead. The slots of a far
// request are 2 * ahead + 2 (Builder::choose_chunk).
#include "plan/builder.hpp"

namespace isthmus::plan {

void plan_one_way_all_reduce(Builder &b) {
  b.choose_chunk(1);
  const size_t g = b.cluster, clusters = b.others + 1;
  const bool shared = b.count > 1;
  const uint32_t first = shared ? 1 : 0, last = first + b.ahead;
  const Range mine = piece_at(b, g, b.position);
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const Span input = Builder::input(0, mine.begin), output = Builder::output(0, mine.begin);
  if (shared) b.need_ring(b.plan.chunk);
  // PREMUL_SUM: my own contribution, scaled.
  const Span own = b.scaled ? Builder::scratch(b.need_scratch(mine.size())) : input;
  // What is sent. In place, the result is written where the input was while a link may still read.
  const bool apart = shared || (b.request.in_place && !b.scaled);
  const Span sum = apart ? Builder::scratch(b.need_scratch(mine.size() * b.wide(g)), b.sends_partials(g)) : own;

  if (shared) {
    b.stage("copy in", 0);
    // The slot's last use needs no wait: see plan_all_reduce().
    for (const Range &r : complement(b.plan.chunk, {mine}))
      b.move(ext(r), Builder::input(0, r.begin), b.ring(b.rank, r.begin), b.scaled);
    b.post(kCopied);
  }

  b.stage(shared ? "reduce" : "send", first);
  if (b.scaled) b.move(ext(mine), input, own, true);
  if (shared && !mine.empty()) {
    b.each_other_member([&](int q) { b.wait(q, kCopied); });
    std::vector<Span> raw;
    for (const int q : b.members) raw.push_back(q == b.rank ? own : b.ring(q, mine.begin));
    b.reduce(ext(mine), raw, {}, sum, true);
  } else if (apart) {
    b.move(ext(mine), own, sum);
  }
  const auto each_piece = [&](size_t h, auto f) {  // of what this rank finishes, by the members of another cluster
    for (size_t j = 0; j < b.clusters.size(h); ++j) f(b.at(h, j), intersect(mine, piece_at(b, h, j)));
  };
  for (size_t i = 1; i < clusters; ++i)
    each_piece((g + i) % clusters, [&](int q, Range x) {
      Span part = sum;
      part.base += (x.begin - mine.begin) * b.wide(g);
      b.send(q, ext(x), part);
    });

  b.stage("finish", last);
  std::vector<Span> sources;
  for (size_t h = 0; h < clusters; ++h) {
    if (h == g) {
      sources.push_back(sum);
      continue;
    }
    const uint64_t at = b.need_scratch(mine.size() * b.wide(h));
    each_piece(h, [&](int q, Range x) {
      b.recv(q, ext(x), Builder::scratch(at + (x.begin - mine.begin) * b.wide(h), b.sends_partials(h)));
    });
    sources.push_back(Builder::scratch(at, b.sends_partials(h)));
  }
  if (!shared) return b.reduce(ext(mine), sources, {}, output, false);
  b.reduce(ext(mine), sources, {}, b.ring(b.rank, mine.begin), false, &output);
  b.post(kReduced);

  b.stage("copy out", last);
  b.each_other_member([&](int q) {
    b.wait(q, kReduced);
    const Range r = piece_at(b, g, b.clusters.at[static_cast<size_t>(q)]);
    b.move(ext(r), b.ring(q, r.begin), Builder::output(0, r.begin), false, b.stream);
  });
}

}  // namespace isthmus::plan
