// Who makes which sums of a reduce_scatter between clusters, by frames, where others make sums for a cluster whose bridge has too little room
// (passed_sums.cpp). A chunk of a block is cut in domains; that of cluster f is summed by the members of f, a piece each, and that of the block's own
// cluster by the rank whose block it is.
#pragma once

#include <vector>

#include "plan/builder.hpp"

namespace isthmus::plan {

class SumRoutes {
 public:
  SumRoutes(Builder &b, const Passing &passing);  // the chunk has been chosen

 protected:
  size_t cluster_of(int rank) const { return b_.clusters.of[static_cast<size_t>(rank)]; }
  bool acknowledged(size_t h) const { return b_.reuses() && b_.sends_partials(h); }
  Extent ext(int block, Range r) const { return b_.extent(Memory::Input, static_cast<uint32_t>(block), r); }
  Range domain(int block, size_t by) const { return domains_[cluster_of(block)][by]; }
  // Which part member j of cluster h has of a domain of a block. A library gives its ranks equal pieces in their order. Elsewhere the members change
  // places from block to block, as pieces are of whole lines.
  Range piece(size_t h, size_t j, int block, size_t by) const;
  // What this rank sums of that block: the whole domain of its own one, a piece of those of other clusters.
  Range summed(int block) const;

  // f(block, domain's cluster, range): what this rank has of its cluster's numbers, for each domain that another cluster sums.
  template <class F>
  void each_reduced(F f) const {
    for (int d = 0; d < b_.world; ++d)
      for (size_t by = 0; by < clusters_; ++by)
        if (const Range mine = piece(g_, b_.position, d, by); by != g_ && !mine.empty()) f(d, by, mine);
  }
  // f(to, range): the frames of that.
  template <class F>
  void each_frame(int d, size_t by, Range mine, F f) const {
    if (by == cluster_of(d)) return f(d, mine);
    for (size_t j = 0; j < b_.clusters.size(by); ++j)
      if (const Range x = intersect(mine, piece(by, j, d, by)); !x.empty()) f(b_.at(by, j), x);
  }
  // f(from, range): the results for this rank's block.
  template <class F>
  void each_result(F f) const {
    for (size_t h = 0; h < clusters_; ++h)
      for (size_t j = 0; j < b_.clusters.size(h); ++j)
        if (const Range x = piece(h, j, b_.rank, h); h != g_ && !x.empty()) f(b_.at(h, j), x);
  }

  // Receives what the other clusters give to `r` of a block, and answers where they wait for that. Returns the sources of the sum; `own`: those of this
  // rank's cluster.
  struct Given {
    std::vector<Span> spans;
    std::vector<uint32_t> ends;
  };
  Given receive(int block, Range r, const std::vector<Span> &own);

  Builder &b_;
  const size_t g_, clusters_;

 private:
  std::vector<Range> cut(const Passing &passing, size_t home) const;
  std::vector<std::vector<Range>> domains_;  // by the cluster whose block it is
  Span token_out_;
};

// A rank with a library (island_passed_sums.cpp).
void plan_island_passed_sums(Builder &b, const Passing &passing);

}  // namespace isthmus::plan
