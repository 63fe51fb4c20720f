// all_gather of a rank that a vendor's library serves, among other islands. Blocks come by the routes of GatherRoutes: members of an island have equal
// parts of what comes from outside, and the library's broadcast spreads each part from the member that took it, and the island's own blocks.
//
//   stage      turn   where nothing is passed on
//   copy in    t      t      device: input -> slot
//   send       t      t      slot -> send
//   collect    t-1    t-1    receive -> slot; what this rank passes on: slot -> send
//   gather     t-2           receive what others pass on -> slot
//   copy out   t-4    t-4    device: slot -> output; broadcasts
//
// No slot needs an answer. The gate of chunk c - kIslandAhead is opened, or the broadcast of what another rank took is given, when all of chunk c - kIslandAhead
// has come. A slot's part is received for chunk c + slots after that chunk was staged, and so after chunk c was copied out.
// What the links may still read is this rank's own affair all the same. The gate is not opened before the links have what was sent of that
// chunk, also on ranks that take nothing.
#include <algorithm>

#include "plan/builder.hpp"
#include "plan/gather_routes.hpp"

namespace isthmus::plan {
namespace {

class IslandAllGather {
 public:
  explicit IslandAllGather(Builder &b) : b_(b), routes_(b), g_(b.cluster), clusters_(b.others + 1), outside_(b.outside()) {
    b.need_ring(routes_.slot_bytes(g_));
    each_part([&](int, const RoutePart &) { takes_ = true; });
  }

  void plan() {
    device();
    b_.stage("send", 0);
    b_.wait(b_.rank, kStaged);
    for (size_t i = 1; i < clusters_; ++i) {
      const size_t h = (g_ + i) % clusters_;
      for (const size_t domain : {h, g_})
        for (const RoutePart &p : routes_.parts(h, b_.rank, domain))
          b_.send(b_.at(h, p.member), b_.extent(Memory::Input, 0, p.range), b_.ring(b_.rank, p.range.begin));
    }
    b_.stage("collect", 1);
    for (const int q : outside_)
      for (const size_t domain : {g_, cluster_of(q)})
        each_part_of(q, domain, [&](const RoutePart &p) { b_.recv(q, block(q, p.range), b_.ring(b_.rank, p.at)); });
    if (routes_.passes_on()) {
      for (const int q : outside_) each_part_of(q, g_, [&](const RoutePart &p) { pass_on(q, p); });
      gather();
    }
    if (b_.reuses()) b_.taken();
    if (gated()) b_.post(kReady);
  }

 private:
  using RoutePart = GatherRoutes::RoutePart;

  size_t cluster_of(int rank) const { return b_.clusters.of[static_cast<size_t>(rank)]; }
  Extent block(int rank, Range r) const { return b_.extent(Memory::Output, static_cast<uint32_t>(rank), r); }
  static Span output(int rank, Range r) { return Builder::output(static_cast<uint32_t>(rank), r.begin); }
  bool gated() const { return takes_ || b_.reuses(); }
  // f(part): what this rank takes of that domain of a block.
  template <class F>
  void each_part_of(int owner, size_t domain, F f) const {
    for (const RoutePart &p : routes_.parts(g_, owner, domain))
      if (p.member == b_.position) f(p);
  }
  template <class F>  // f(owner, part): of all blocks
  void each_part(F f) const {
    for (const int q : outside_)
      for (size_t d = 0; d < clusters_; ++d) each_part_of(q, d, [&](const RoutePart &p) { f(q, p); });
  }

  void spread(int owner, Range r, size_t from) {
    const Span at = output(owner, r);
    b_.call(IslandCall::Broadcast, When::Always, block(owner, r), at, at, static_cast<int>(from));
  }
  void device() {
    const Range all = b_.whole();
    const Extent mine = b_.extent(Memory::Input, 0, all);
    b_.device_stage("copy out", std::min(kIslandAhead, b_.plan.chunks));
    b_.together();
    if (gated()) b_.wait(b_.rank, kReady);
    each_part([&](int q, const RoutePart &p) { b_.move(block(q, p.range), b_.ring(b_.rank, p.at), output(q, p.range)); });
    for (const int q : outside_)
      for (const RoutePart &p : routes_.holders(g_, q)) spread(q, p.range, p.member);
    b_.device_stage("copy in", 0, true);
    b_.move(mine, Builder::input(0, 0), b_.ring(b_.rank, 0));
    b_.post(kStaged);
    b_.device_stage("island", 0);
    b_.together();
    b_.move(mine, Builder::input(0, 0), output(b_.rank, all));
    for (size_t j = 0; j < b_.count; ++j) spread(b_.members[j], all, j);
  }

  void pass_on(int owner, const RoutePart &mine) {
    for (size_t i = 1; i < clusters_; ++i) {
      const size_t h = (g_ + i) % clusters_;
      if (h == cluster_of(owner)) continue;
      for (const RoutePart &theirs : routes_.parts(h, owner, g_)) {
        const Range x = intersect(mine.range, theirs.range);
        b_.send(b_.at(h, theirs.member), block(owner, x), b_.ring(b_.rank, mine.at + (x.begin - mine.range.begin)));
      }
    }
  }
  void gather() {
    b_.stage("gather", 2);
    for (const int q : outside_)
      for (size_t d = 0; d < clusters_; ++d) {
        if (d == g_ || d == cluster_of(q)) continue;
        each_part_of(q, d, [&](const RoutePart &p) {
          for (const RoutePart &from : routes_.parts(d, q, d)) {
            const Range x = intersect(p.range, from.range);
            b_.recv(b_.at(d, from.member), block(q, x), b_.ring(b_.rank, p.at + (x.begin - p.range.begin)));
          }
        });
      }
  }

  Builder &b_;
  const GatherRoutes routes_;
  const size_t g_, clusters_;
  const std::vector<int> outside_;
  bool takes_ = false;
};

}  // namespace

void plan_island_all_gather(Builder &b) { IslandAllGather(b).plan(); }

}  // namespace isthmus::plan
