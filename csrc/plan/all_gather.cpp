// The all_gather. Between clusters a block crosses once into every other cluster, to members that share it. A cluster whose bridge would have too much
// to carry has others pass its blocks on (GatherRoutes).
//
//   stage      turn   where nothing is passed on
//   copy in    t      t      input -> slot; input -> send
//   collect    t-1    t-1    receive -> slot, output; what this rank passes on: output -> send
//   gather     t-2           receive what others pass on -> slot, output
//   copy out   t-3    t-2    slots -> output
//
// As in a sum, the distance from a send to the stage that takes the frame is the same for all frames.
#include <algorithm>

#include "plan/builder.hpp"
#include "plan/gather_routes.hpp"

namespace isthmus::plan {
namespace {

class AllGather {
 public:
  explicit AllGather(Builder &b)
      : b_(b),
        routes_(b),
        g_(b.cluster),
        clusters_(b.others + 1),
        shared_(b.count > 1),
        passed_(routes_.passes_on()),
        outside_(b.outside()) {
    if (shared_) b.need_ring(routes_.slot_bytes(g_));
  }

  void plan() {
    const uint32_t depth = b_.depth, collected = passed_ ? std::min(1u, depth / 2) : std::min(b_.ahead, depth);
    copy_in();
    collect(collected);
    if (passed_) gather(2 * collected);
    if (shared_ && b_.others) b_.post(kReduced);
    const uint32_t last = passed_ ? 2 * collected : b_.others ? collected : 0;
    if (shared_) copy_out(passed_ && depth < 3 ? last : std::min(last + 1, depth));
  }

 private:
  using RoutePart = GatherRoutes::RoutePart;

  size_t cluster_of(int rank) const { return b_.clusters.of[static_cast<size_t>(rank)]; }
  Extent block(int rank, Range r) const { return b_.extent(Memory::Output, static_cast<uint32_t>(rank), r); }
  static Span output(int rank, Range r) { return Builder::output(static_cast<uint32_t>(rank), r.begin); }
  // f(part): what the member at `position` takes of that domain of a block.
  template <class F>
  void each_part(int owner, size_t domain, size_t position, F f) const {
    for (const RoutePart &p : routes_.parts(g_, owner, domain))
      if (p.member == position) f(p);
  }

  void copy_in() {
    const Range all = b_.whole();
    const Extent mine = b_.extent(Memory::Input, 0, all);
    b_.stage("copy in", 0);
    for (size_t i = 1; i < clusters_; ++i) {
      const size_t h = (g_ + i) % clusters_;
      for (const size_t domain : {h, g_})
        for (const RoutePart &p : routes_.parts(h, b_.rank, domain))
          b_.send(b_.at(h, p.member), b_.extent(Memory::Input, 0, p.range), Builder::input(0, p.range.begin));
    }
    if (shared_) {
      b_.each_other_member([&](int q) { b_.wait_reuse(q, kConsumed); });
      b_.move(mine, Builder::input(0, 0), b_.ring(b_.rank, 0));
      if (!b_.others) b_.post(kCopied);  // else the slot is read when it is complete
    }
    b_.move(mine, Builder::input(0, 0), output(b_.rank, all), false, b_.stream);
  }

  void take(int from, int owner, Range r, uint64_t at) {
    const Span to = shared_ ? b_.ring(b_.rank, at) : output(owner, r);
    b_.recv(from, block(owner, r), to);
    if (shared_) b_.move(block(owner, r), to, output(owner, r), false, b_.stream && !passed_);
  }
  void collect(uint32_t skew) {
    b_.stage("collect", skew);
    for (const int q : outside_)
      for (const size_t domain : {g_, cluster_of(q)})
        each_part(q, domain, b_.position, [&](const RoutePart &p) { take(q, q, p.range, p.at); });
    if (!passed_) return;
    // Sent from the output, which nobody writes again.
    for (const int q : outside_) each_part(q, g_, b_.position, [&](const RoutePart &p) { pass_on(q, p.range); });
  }
  void pass_on(int owner, Range mine) {
    for (size_t i = 1; i < clusters_; ++i) {
      const size_t h = (g_ + i) % clusters_;
      if (h == cluster_of(owner)) continue;
      for (const RoutePart &theirs : routes_.parts(h, owner, g_)) {
        const Range x = intersect(mine, theirs.range);
        b_.send(b_.at(h, theirs.member), block(owner, x), output(owner, x));
      }
    }
  }
  void gather(uint32_t skew) {
    b_.stage("gather", skew);
    for (const int q : outside_)
      for (size_t d = 0; d < clusters_; ++d) {
        if (d == g_ || d == cluster_of(q)) continue;
        each_part(q, d, b_.position, [&](const RoutePart &p) {
          for (const RoutePart &from : routes_.parts(d, q, d))
            if (const Range x = intersect(p.range, from.range); !x.empty())
              take(b_.at(d, from.member), q, x, p.at + (x.begin - p.range.begin));
        });
      }
  }
  void copy_out(uint32_t skew) {
    b_.stage("copy out", skew);
    b_.each_other_member([&](int q) {
      b_.wait(q, b_.others ? kReduced : kCopied);
      b_.move(block(q, b_.whole()), b_.ring(q, 0), output(q, b_.whole()), false, b_.stream);
      for (const int owner : outside_)
        for (size_t d = 0; d < clusters_; ++d)
          each_part(owner, d, b_.clusters.at[static_cast<size_t>(q)], [&](const RoutePart &p) {
            b_.move(block(owner, p.range), b_.ring(q, p.at), output(owner, p.range), false, b_.stream);
          });
    });
    b_.post(kConsumed);
  }

  Builder &b_;
  const GatherRoutes routes_;
  const size_t g_, clusters_;
  const bool shared_, passed_;
  const std::vector<int> outside_;
};

}  // namespace

void plan_all_gather(Builder &b) {
  if (b.shared_slots) return plan_shared_all_gather(b);
  if (b.across_hosts) return plan_hosts_all_gather(b);
  GatherRoutes::choose_chunk(b);
  if (b.library) return plan_island_all_gather(b);
  AllGather(b).plan();
}

}  // namespace isthmus::plan
