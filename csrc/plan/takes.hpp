// What ranks find in the slots of others where libraries serve some of them: on one host (shared_islands.cpp), and on each host of several
// (hosts.cpp). Internal to the planner.
#pragma once

#include <vector>

#include "plan/builder.hpp"

namespace isthmus::plan {

// What a rank that a library serves takes out of the slots of others.
class Takes {
 public:
  explicit Takes(Builder &b) : b_(b), reaches_(b.plan.slots * b.plan.slot_bytes <= b.request.reach) {}
  void add(int from, const Extent &e, uint64_t at, Span to) {
    if (e.length > 0) takes_.push_back({from, e, at, reaches_ ? 0 : b_.need_scratch(e.length), to});
  }
  bool any() const noexcept { return !takes_.empty(); }
  // Of the host list: what is to be taken has come.
  void arrive(uint8_t counter = kCopied) const {
    for (const Take &t : takes_) {
      b_.wait(t.from, counter);
      if (!reaches_) b_.move(t.extent, b_.ring(t.from, t.at), Builder::scratch(t.scratch));
    }
  }
  // Of the device list.
  void copy() const {
    for (const Take &t : takes_) b_.move(t.extent, reaches_ ? b_.ring(t.from, t.at) : Builder::scratch(t.scratch), t.to);
  }

 private:
  struct Take {
    int from;
    Extent extent;
    uint64_t at, scratch;
    Span to;
  };
  Builder &b_;
  const bool reaches_;
  std::vector<Take> takes_;
};

inline size_t cluster_of(const Builder &b, int q) { return b.clusters.of[static_cast<size_t>(q)]; }
inline bool served(const Builder &b, int q) { return b.clusters.library[cluster_of(b, q)]; }

// The part of a chunk whose contribution lies in the slot of rank q, in an all_reduce from the beginning of the slot. A rank that no library serves
// has its own contribution to the whole chunk. The others have the library's sum of their piece.
inline Range given_by(const Builder &b, int q) {
  return served(b, q) ? piece_at(b, cluster_of(b, q), b.clusters.at[static_cast<size_t>(q)]) : b.whole();
}

// The most of what slots hold: by_library(ranks) in an island with a library, `alone` for a rank without.
template <class F>
SlotShare share_of_slots(const Builder &b, F by_library, SlotShare alone) {
  SlotShare share{0, 1};
  for (size_t h = 0; h <= b.others; ++h)
    share = SlotShare::most(share, b.clusters.library[h] ? by_library(uint64_t{b.clusters.size(h)}) : alone);
  return share;
}

}  // namespace isthmus::plan
