// The reduce_scatter between clusters, by frames, where the bridge of a cluster has too little room for all contributions to its blocks: other
// clusters make a part of its sums, and send it the results. A sum is still one reduction of all contributions in island order, so it has the bits that it
// has wherever it is made.
//
// Domains. A chunk of a block is cut, by scatter_passing(): the first part is summed by the rank whose block it is; each other domain by a cluster,
// whose members sum a piece each.
//
//   stage          turn
//   copy in        t     what other members reduce, to the slot
//   reduce         t-1   a piece of each domain that another cluster sums, over the cluster -> send (partial result)
//   finish         t-2   receive partial results; own block: reduce -> output; other clusters' blocks: reduce -> scratch -> send (result)
//   acknowledged   t-3   receive tokens for partial results
//   collect        t-3   receive results -> output
//
// Credit. One rank may send parts of all blocks to another. A chunk of all blocks is four chunks of the setting at the most, and so two turns of that,
// in accumulator width, are 32: links grant 64.
// Frames between two ranks. Contributions go by rising blocks and so do their answers; the results follow the answers of their turn.
// Reuse. A result's scratch needs no answer. It is written again for chunk c + slots, after contributions of that chunk have come from the cluster
// whose block it is. None of its members sends those before all of its members have copied chunk c + slots in, and who has done that has collected all
// chunks up to c + slots - 4. So there are four slots at the least, or as many as chunks.
#include "plan/passed_sums.hpp"

#include <algorithm>
#include <cmath>

namespace isthmus::plan {

SumRoutes::SumRoutes(Builder &b, const Passing &passing) : b_(b), g_(b.cluster), clusters_(b.others + 1) {
  for (size_t h = 0; h < clusters_; ++h) domains_.push_back(cut(passing, h));
  token_out_ = Builder::scratch(b.need_scratch(kTokenBytes));
}

// Of a block of that cluster, by the cluster that sums them.
std::vector<Range> SumRoutes::cut(const Passing &passing, size_t home) const {
  std::vector<Range> out(clusters_);
  const uint64_t units = b_.plan.chunk / b_.unit;
  double sum = passing.direct[home];
  const auto upto = [&] {
    return std::min(units, static_cast<uint64_t>(std::floor(sum * static_cast<double>(units) + 0.5)));
  };
  uint64_t at = upto();
  out[home] = {0, at * b_.unit};
  size_t last = home;
  for (size_t f = 0; f < clusters_; ++f) {
    if (f == home || passing.relays[f] <= 0 || at == units) continue;
    sum += (1 - passing.direct[home]) * passing.relays[f];
    const uint64_t end = std::max(at, upto());
    out[f] = {at * b_.unit, end * b_.unit};
    if (end > at) last = f;
    at = end;
  }
  if (at < units) out[last].end = units * b_.unit;  // what rounding has left
  return out;
}

Range SumRoutes::piece(size_t h, size_t j, int block, size_t by) const {
  const size_t members = b_.clusters.size(h);
  return piece_of(domain(block, by), members, b_.clusters.library[h] ? j : (j + static_cast<size_t>(block)) % members);
}

Range SumRoutes::summed(int block) const {
  if (block == b_.rank) return domain(block, g_);
  return cluster_of(block) == g_ ? Range{} : piece(g_, b_.position, block, g_);
}

SumRoutes::Given SumRoutes::receive(int block, Range r, const std::vector<Span> &own) {
  Given out;
  for (size_t h = 0; h < clusters_; ++h) {
    if (h == g_) {
      for (const Span &s : own) out.spans.push_back(s);
    } else {
      const uint64_t at = b_.need_scratch(r.size() * b_.wide(h));
      out.spans.push_back(b_.contribution(h, Builder::scratch(at, b_.sends_partials(h))));
      for (size_t j = 0; j < b_.clusters.size(h); ++j) {
        const Range x = intersect(r, piece(h, j, block, g_));
        b_.recv(b_.at(h, j), ext(block, x), Builder::scratch(at + (x.begin - r.begin) * b_.wide(h), b_.sends_partials(h)));
        if (acknowledged(h)) b_.send_token(b_.at(h, j), ext(block, x), token_out_);
      }
    }
    out.ends.push_back(static_cast<uint32_t>(out.spans.size()));
  }
  return out;
}

namespace {

constexpr uint32_t kPassedSlots = 4;

// Of each block a slot has a rank's piece, or all of it on ranks without a library; and the rank's own block.
SlotShare share_of_sums(const Builder &b) {
  const auto world = static_cast<uint64_t>(b.world);
  uint64_t smallest = world;
  for (size_t h = 0; h <= b.others; ++h) {
    if (!b.clusters.library[h]) return {world, 1};
    smallest = std::min<uint64_t>(smallest, b.clusters.size(h));
  }
  return {world + smallest, smallest};
}

class PassedSums : SumRoutes {
 public:
  PassedSums(Builder &b, const Passing &passing) : SumRoutes(b, passing), shared_(b.count > 1) {
    token_in_ = Builder::scratch(b.need_scratch(kTokenBytes));
    if (shared_) b.need_ring(static_cast<uint64_t>(b.world) * b.plan.chunk);
  }

  void plan() {
    if (shared_) copy_in();
    give();
    finish();
    b_.stage("acknowledged", 3);
    if (acknowledged(g_))
      each_reduced([&](int d, size_t by, Range mine) {
        each_frame(d, by, mine, [&](int to, Range x) { b_.recv_token(to, ext(d, x), token_in_); });
      });
    b_.stage("collect", 3);
    each_result([&](int from, Range x) { b_.recv(from, ext(b_.rank, x), Builder::output(0, x.begin)); });
  }

 private:
  static Span own(int block, uint64_t at) { return Builder::input(static_cast<uint32_t>(block), at); }
  uint64_t region(int block) const { return static_cast<uint64_t>(block) * b_.plan.chunk; }
  std::vector<Span> raw(int block, uint64_t at) const {
    std::vector<Span> out;
    for (const int q : b_.members) out.push_back(q == b_.rank ? own(block, at) : b_.ring(q, region(block) + at));
    return out;
  }

  void copy_in() {
    b_.stage("copy in", 0);
    b_.each_other_member([&](int q) { b_.wait_reuse(q, kReduced); });
    for (int d = 0; d < b_.world; ++d)
      for (size_t by = 0; by < clusters_; ++by) {
        const Range r = domain(d, by);
        if (by == g_ && d == b_.rank) continue;  // read by nobody else
        Range mine = cluster_of(d) == g_ && by == g_ ? Range{} : piece(g_, b_.position, d, by);
        for (const Range x :
             {Range{r.begin, mine.empty() ? r.end : mine.begin}, Range{mine.empty() ? r.end : mine.end, r.end}})
          if (!x.empty()) b_.move(ext(d, x), own(d, x.begin), b_.ring(b_.rank, region(d) + x.begin));
      }
    b_.post(kCopied);
  }

  void give() {
    b_.stage(shared_ ? "reduce" : "send", 1);
    if (shared_) b_.each_other_member([&](int q) { b_.wait(q, kCopied); });
    each_reduced([&](int d, size_t by, Range mine) {
      Span from = own(d, mine.begin);
      if (shared_) {
        from = Builder::scratch(b_.need_scratch(mine.size() * b_.ratio), true);
        b_.reduce(ext(d, mine), raw(d, mine.begin), {}, from, true);
      }
      each_frame(d, by, mine, [&](int to, Range x) {
        Span part = from;
        part.base += (x.begin - mine.begin) * b_.wide(g_);
        b_.send(to, ext(d, x), part);
      });
    });
  }

  // All that comes is received first: so the answers to a rank are before the results for it.
  void finish() {
    struct Sum {
      int block;
      Range range;
      Given given;
    };
    std::vector<Sum> sums;
    b_.stage("finish", 2);
    for (int d = 0; d < b_.world; ++d)
      if (const Range mine = summed(d); !mine.empty()) sums.push_back({d, mine, receive(d, mine, raw(d, mine.begin))});
    for (const Sum &s : sums) {
      const bool result = s.block == b_.rank;
      const Span to = result ? Builder::output(0, s.range.begin) : Builder::scratch(b_.need_scratch(s.range.size()));
      b_.reduce(ext(s.block, s.range), s.given.spans, s.given.ends, to, false);
      if (!result) b_.send(s.block, ext(s.block, s.range), to);
    }
    if (shared_) b_.post(kReduced);
  }

  const bool shared_;
  Span token_in_;
};

}  // namespace

bool plan_passed_reduce_scatter(Builder &b) {
  if (b.varying || b.scaled || b.others < 2 || b.request.bytes <= b.request.small_bytes) return false;
  std::vector<double> ranks, rates;
  for (size_t g = 0; g <= b.others; ++g) {
    ranks.push_back(static_cast<double>(b.clusters.size(g)));
    rates.push_back(g < b.topology.weights.size() ? b.topology.weights[g] : 1.0);
  }
  const Passing passing = scatter_passing(ranks, rates);
  if (passing.relays.empty()) return false;
  const auto world = static_cast<uint64_t>(b.world);
  if (b.libraries()) b.choose_island_chunk(share_of_sums(b), world);
  else b.choose_chunk(world);
  if (b.reuses() && b.plan.slots < kPassedSlots) return false;
  if (b.library) plan_island_passed_sums(b, passing);
  else PassedSums(b, passing).plan();
  return true;
}

}  // namespace isthmus::plan
