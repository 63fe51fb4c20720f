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
#include <algorithm>
#include <cmath>

#include "plan/builder.hpp"

namespace isthmus::plan {
namespace {

constexpr uint32_t kPassedSlots = 4;

class PassedSums {
 public:
  PassedSums(Builder &b, const Passing &passing) : b_(b), g_(b.cluster), clusters_(b.others + 1), shared_(b.count > 1) {
    for (size_t h = 0; h < clusters_; ++h) domains_.push_back(domains(passing, h));
    token_out_ = Builder::scratch(b.need_scratch(kTokenBytes));
    token_in_ = Builder::scratch(b.need_scratch(kTokenBytes));
    if (shared_) b.need_ring(static_cast<uint64_t>(b.world) * b.plan.chunk);
  }

  void plan() {
    if (shared_) copy_in();
    give();
    finish();
    b_.stage("acknowledged", 3);
    if (acknowledged(g_)) each_given([&](int d, int to, Range x, Range) { b_.recv_token(to, ext(d, x), token_in_); });
    b_.stage("collect", 3);
    for (size_t f = 0; f < clusters_; ++f) {
      if (f == g_) continue;
      for (size_t j = 0; j < b_.clusters.size(f); ++j) {
        const Range x = piece(f, j, b_.rank, f);
        b_.recv(b_.at(f, j), ext(b_.rank, x), Builder::output(0, x.begin));
      }
    }
  }

 private:
  // Of a block of that cluster, by the cluster that sums them.
  std::vector<Range> domains(const Passing &passing, size_t home) const {
    std::vector<Range> out(clusters_);
    const uint64_t lines = b_.plan.chunk / kLine;
    double sum = passing.direct[home];
    const auto upto = [&] {
      return std::min(lines, static_cast<uint64_t>(std::floor(sum * static_cast<double>(lines) + 0.5)));
    };
    uint64_t at = upto();
    out[home] = {0, at * kLine};
    size_t last = home;
    for (size_t f = 0; f < clusters_; ++f) {
      if (f == home || passing.relays[f] <= 0 || at == lines) continue;
      sum += (1 - passing.direct[home]) * passing.relays[f];
      const uint64_t end = std::max(at, upto());
      out[f] = {at * kLine, end * kLine};
      if (end > at) last = f;
      at = end;
    }
    if (at < lines) out[last].end = lines * kLine;  // what rounding has left
    return out;
  }

  size_t cluster_of(int rank) const { return b_.clusters.of[static_cast<size_t>(rank)]; }
  bool sends_partials(size_t h) const { return b_.clusters.size(h) > 1; }
  uint64_t wide(size_t h) const { return sends_partials(h) ? b_.ratio : 1; }
  bool acknowledged(size_t h) const { return b_.reuses() && sends_partials(h); }
  Extent ext(int block, Range r) const { return b_.extent(Memory::Input, static_cast<uint32_t>(block), r); }
  static Span own(int block, uint64_t at) { return Builder::input(static_cast<uint32_t>(block), at); }
  uint64_t region(int block) const { return static_cast<uint64_t>(block) * b_.plan.chunk; }
  // Which part member j of cluster h reduces of a domain of a block. From block to block the members change places, as pieces are of whole lines.
  Range piece(size_t h, size_t j, int block, size_t by) const {
    const size_t members = b_.clusters.size(h);
    return piece_of(domains_[cluster_of(block)][by], members, (j + static_cast<size_t>(block)) % members);
  }
  std::vector<Span> raw(int block, uint64_t at) const {
    std::vector<Span> out;
    for (const int q : b_.members) out.push_back(q == b_.rank ? own(block, at) : b_.ring(q, region(block) + at));
    return out;
  }
  // f(block, domain's cluster, range): what this rank reduces of its cluster, for each domain.
  template <class F>
  void each_reduced(F f) const {
    for (int d = 0; d < b_.world; ++d)
      for (size_t by = 0; by < clusters_; ++by)
        if (const Range mine = piece(g_, b_.position, d, by); by != g_ && !mine.empty()) f(d, by, mine);
  }
  // f(block, to, range, of): the frames of that. `of`: what was reduced with it.
  template <class F>
  void each_given(F f) const {
    each_reduced([&](int d, size_t by, Range mine) { each_frame(d, by, mine, f); });
  }
  template <class F>
  void each_frame(int d, size_t by, Range mine, F f) const {
    if (by == cluster_of(d)) return f(d, d, mine, mine);
    for (size_t j = 0; j < b_.clusters.size(by); ++j)
      if (const Range x = intersect(mine, piece(by, j, d, by)); !x.empty()) f(d, b_.at(by, j), x, mine);
  }

  void copy_in() {
    b_.stage("copy in", 0);
    b_.each_other_member([&](int q) { b_.wait_reuse(q, kReduced); });
    for (int d = 0; d < b_.world; ++d)
      for (size_t by = 0; by < clusters_; ++by) {
        const Range r = domains_[cluster_of(d)][by];
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
      each_frame(d, by, mine, [&](int, int to, Range x, Range of) {
        Span part = from;
        part.base += (x.begin - of.begin) * wide(g_);
        b_.send(to, ext(d, x), part);
      });
    });
  }

  // Receives what the other clusters give to `r` of a block, and answers. Returns the sources of the sum.
  struct Given {
    std::vector<Span> spans;
    std::vector<uint32_t> ends;
  };
  Given receive(int block, size_t by, Range r) {
    std::vector<uint64_t> at(clusters_);
    for (size_t h = 0; h < clusters_; ++h) {
      if (h == g_) continue;
      at[h] = b_.need_scratch(r.size() * wide(h));
      for (size_t j = 0; j < b_.clusters.size(h); ++j) {
        const Range x = intersect(r, piece(h, j, block, by));
        if (x.empty()) continue;
        b_.recv(b_.at(h, j), ext(block, x), Builder::scratch(at[h] + (x.begin - r.begin) * wide(h), sends_partials(h)));
        if (acknowledged(h)) b_.send_token(b_.at(h, j), ext(block, x), token_out_);
      }
    }
    Given out;
    for (size_t h = 0; h < clusters_; ++h) {
      if (h != g_) out.spans.push_back(b_.contribution(h, Builder::scratch(at[h], sends_partials(h))));
      else
        for (const Span &s : raw(block, r.begin)) out.spans.push_back(s);
      out.ends.push_back(static_cast<uint32_t>(out.spans.size()));
    }
    return out;
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
    for (int d = 0; d < b_.world; ++d) {
      const Range r = domains_[cluster_of(d)][g_];
      const Range mine = d == b_.rank ? r : cluster_of(d) == g_ ? Range{} : piece(g_, b_.position, d, g_);
      if (!mine.empty()) sums.push_back({d, mine, receive(d, g_, mine)});
    }
    for (const Sum &s : sums) {
      const bool result = s.block == b_.rank;
      const Span to = result ? Builder::output(0, s.range.begin) : Builder::scratch(b_.need_scratch(s.range.size()));
      b_.reduce(ext(s.block, s.range), s.given.spans, s.given.ends, to, false);
      if (!result) b_.send(s.block, ext(s.block, s.range), to);
    }
    if (shared_) b_.post(kReduced);
  }

  Builder &b_;
  const size_t g_, clusters_;
  const bool shared_;
  std::vector<std::vector<Range>> domains_;  // by the cluster whose block it is
  Span token_out_, token_in_;
};

}  // namespace

bool plan_passed_reduce_scatter(Builder &b) {
  if (b.varying || b.scaled || b.libraries() || b.others < 2 || b.request.bytes <= b.request.small_bytes) return false;
  std::vector<double> ranks, rates;
  for (size_t g = 0; g <= b.others; ++g) {
    ranks.push_back(static_cast<double>(b.clusters.size(g)));
    rates.push_back(g < b.topology.weights.size() ? b.topology.weights[g] : 1.0);
  }
  const Passing passing = scatter_passing(ranks, rates);
  if (passing.relays.empty()) return false;
  b.choose_chunk(static_cast<uint64_t>(b.world));
  if (b.reuses() && b.plan.slots < kPassedSlots) return false;
  PassedSums(b, passing).plan();
  return true;
}

}  // namespace isthmus::plan
