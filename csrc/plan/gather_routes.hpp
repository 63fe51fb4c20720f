// How the blocks of an all_gather come from cluster to cluster, by frames.
//
// A cluster sends a block to every other cluster itself, or a part of it to one of them, which passes the part on. A cluster with many ranks and a slow
// bridge so sends less: of each byte one copy instead of k - 1. A domain of a block is what one cluster passes on; that of the block's own cluster goes
// straight to all.
//
//   cluster 0, rank 0   |- domain 0: to 1 and 2 -|- domain 1: to 1 -|- domain 2: to 2 -|
//   cluster 1                                    |  and from 1 to 2 |
//   cluster 2                                                       |  and from 2 to 1 |
//
// In each cluster every part has one member who takes it. The members have equal parts of all that comes.
#pragma once

#include <vector>

#include "plan/builder.hpp"

namespace isthmus::plan {

class GatherRoutes {
 public:
  struct RoutePart {
    size_t member;  // by position
    Range range;    // of a chunk
    uint64_t at;    // in the member's slot
  };

  explicit GatherRoutes(const Builder &b);  // the chunk has been chosen
  static Passing passing_of(const Builder &b);
  static void choose_chunk(Builder &b);

  // What the members of cluster `h` take of that domain of the block of `owner`, in the order of the bytes.
  const std::vector<RoutePart> &parts(size_t h, int owner, size_t domain) const {
    return parts_[(h * ranks_ + static_cast<size_t>(owner)) * clusters_ + domain];
  }
  // Who of the members has which range of that block when all parts have come; neighbours are one. `at` has no meaning.
  std::vector<RoutePart> holders(size_t h, int owner) const;
  bool passes_on() const noexcept { return passes_on_; }              // some part comes by way of a cluster
  uint64_t slot_bytes(size_t h) const noexcept { return slots_[h]; }  // of a chunk, with the member's own block

 private:
  std::vector<Range> domains_of_blocks(const Builder &b, size_t home) const;
  void share_out(const Builder &b, size_t h);

  const size_t clusters_, ranks_;
  const Passing passing_;
  bool passes_on_ = false;
  std::vector<std::vector<RoutePart>> parts_;
  std::vector<uint64_t> slots_;
};

}  // namespace isthmus::plan
