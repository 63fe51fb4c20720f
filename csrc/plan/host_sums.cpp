// The reduce_scatter of islands that meet on several hosts, some of them served by libraries (hosts.hpp). The library sums every block: a block of
// another island in pieces, one for each of its ranks, and a block of its own for the rank that gets it. That rank reduces what lies in the slots of
// its host, with what links bring from others.
//
// The slot of a rank has its own block first, and behind it a place for each block of which it has a piece, or all. Counters of a rank:
//   kCopied     what it has of all blocks lies in its slot
//   kConsumed   it has read chunk c of all slots that it reads
// Between a rank's two lists, as in shared_islands.cpp.
#include <algorithm>
#include <optional>

#include "plan/hosts.hpp"
#include "plan/takes.hpp"

namespace isthmus::plan {
namespace {

// The host reduces a turn behind the device's signal, and the links have a turn more. No other rank's device reads a slot.
constexpr uint32_t kSumsAhead = 3, kSumsTurn = 1;
static_assert(kLeastIslandSlots > 2 * kSumsAhead - kSumsTurn);

class HostReduceScatter {
 public:
  explicit HostReduceScatter(Builder &b)
      : b_(b), hosts_(b), chunk_(b.plan.chunk), mine_(piece_at(b, b.cluster, b.position)) {
    const auto world = static_cast<uint64_t>(b.world);
    for (size_t h = 0; h <= b.others; ++h) {
      const uint64_t size = b.clusters.size(h);
      b.need_ring(b.clusters.library[h] ? chunk_ + (world - size) * (chunk_ / size) : world * chunk_);
    }
  }
  // What a slot has of a chunk, where it has most.
  static SlotShare share(const Builder &b) {
    const auto world = static_cast<uint64_t>(b.world);
    return share_of_slots(b, [world](uint64_t size) { return SlotShare{world, size}; }, {world, 1});
  }

  void plan_served() {
    const uint32_t ahead = std::min(kSumsAhead, b_.plan.chunks);
    device(ahead);
    b_.stage("send", 0);
    b_.wait(b_.rank, kStaged);
    b_.post(kCopied);
    for (const int d : b_.outside())
      if (!is_near(d)) b_.send(d, ext(d, mine_), b_.ring(b_.rank, place(b_.rank, d)));
    finish();
    // Behind this gate the device fills the slot of a chunk that comes `ahead` later.
    each_giver([&](int q) { b_.wait_reuse(q, kConsumed, ahead); });
    b_.post(kReady);
    b_.stage("sent", kSumsTurn + 1);
    if (b_.reuses()) b_.taken();
  }

  void plan_unserved() {
    const Range all = b_.whole();
    b_.stage("copy in", 0);
    each_giver([&](int q) { b_.wait_reuse(q, kConsumed); });
    for (int d = 0; d < b_.world; ++d) {
      if (d == b_.rank) continue;
      for (const Range &r : is_near(d) ? std::vector<Range>{all} : others_of(mine_))
        b_.move(ext(d, r), user(d, r.begin), b_.ring(b_.rank, place(b_.rank, d) + r.begin));
    }
    b_.post(kCopied);
    b_.stage("reduce", kSumsTurn);
    b_.each_other_member([&](int q) { b_.wait(q, kCopied); });
    for (int d = 0; d < b_.world; ++d)
      if (!is_near(d) && !mine_.empty()) give(d);
    finish();
    b_.stage("sent", kSumsTurn + 1);
    if (b_.reuses()) b_.taken();
  }

 private:
  Extent ext(int block, Range r) const { return b_.extent(Memory::Input, static_cast<uint32_t>(block), r); }
  static Span user(int block, uint64_t at) { return Builder::input(static_cast<uint32_t>(block), at); }
  bool is_near(int q) const { return hosts_.of[static_cast<size_t>(q)] == hosts_.here; }
  // Where block `block` lies in the slot of q, which has a piece of it where a library serves it.
  uint64_t place(int q, int block) const {
    if (block == q) return 0;
    if (!served(b_, q)) return chunk_ * static_cast<uint64_t>(block < q ? block + 1 : block);
    const std::vector<int> &own = b_.clusters.members[cluster_of(b_, q)];  // ascending
    const auto before = std::lower_bound(own.begin(), own.end(), block) - own.begin();
    return chunk_ + static_cast<uint64_t>(block - before) * (chunk_ / own.size());
  }
  // Who is alone in its cluster gives links what it has, and nobody reads it in a slot.
  std::vector<Range> others_of(Range piece) const {
    return b_.count > 1 ? complement(chunk_, {piece}) : std::vector<Range>{};
  }
  // Calls f(rank) for the ranks of this host whose slots this rank reads, and which read this rank's.
  template <class F>
  void each_giver(F f) const {
    hosts_.each_neighbour([&](int q) {
      if (!b_.library || cluster_of(b_, q) != b_.cluster) f(q);
    });
  }

  // What the cluster, which no library serves, has of a block of another host: this rank's piece of it.
  void give(int d) {
    Span from = user(d, mine_.begin);
    if (b_.count > 1) {
      from = Builder::scratch(b_.need_scratch(mine_.size() * b_.ratio), true);
      std::vector<Span> raw;
      for (const int q : b_.members)
        raw.push_back(q == b_.rank ? user(d, mine_.begin) : b_.ring(q, place(q, d) + mine_.begin));
      b_.reduce(ext(d, mine_), raw, {}, from, true);
    }
    b_.send(d, ext(d, mine_), from);
  }

  // Contributions to my block, of cluster h, to `r`, within which one rank of a served cluster has it. `from`: where what came by links lies.
  void add_sources(size_t h, Range r, std::optional<uint64_t> from, std::vector<Span> &out) const {
    const auto add = [&](Span s) { out.push_back(b_.contribution(h, s)); };
    if (h == b_.cluster && b_.library) return add(b_.ring(b_.rank, r.begin));
    bool near = false;
    for (size_t j = 0; j < b_.clusters.size(h); ++j) {
      const int q = b_.at(h, j);
      const Range has = b_.clusters.library[h] ? piece_at(b_, h, j) : b_.whole();
      if (!is_near(q) || intersect(has, r).empty()) continue;
      near = true;
      add(q == b_.rank ? user(q, r.begin) : b_.ring(q, place(q, b_.rank) + (r.begin - has.begin)));
    }
    if (!near) add(Builder::scratch(from.value_or(0) + r.begin * b_.wide(h), b_.sends_partials(h)));
  }

  void finish() {
    b_.stage("finish", kSumsTurn);
    std::vector<std::optional<uint64_t>> from(b_.others + 1);
    std::vector<uint64_t> cuts{0, chunk_};
    each_giver([&](int q) { b_.wait(q, kCopied); });
    for (size_t h = 0; h <= b_.others; ++h) {
      if (h == b_.cluster) continue;
      for (size_t j = 0; j < b_.clusters.size(h); ++j) {
        const Range x = piece_at(b_, h, j);
        if (b_.clusters.library[h]) cuts.push_back(x.begin);
        if (is_near(b_.at(h, j))) continue;
        if (!from[h]) from[h] = b_.need_scratch(chunk_ * b_.wide(h));
        b_.recv(b_.at(h, j), ext(b_.rank, x), Builder::scratch(*from[h] + x.begin * b_.wide(h), b_.sends_partials(h)));
      }
    }
    each_between(std::move(cuts), [&](Range r) {
      std::vector<Span> sources;
      std::vector<uint32_t> ends;
      for (size_t h = 0; h <= b_.others; ++h) {
        add_sources(h, r, from[h], sources);
        ends.push_back(static_cast<uint32_t>(sources.size()));
      }
      b_.reduce(ext(b_.rank, r), sources, ends, b_.library ? b_.ring(b_.rank, r.begin) : Builder::output(0, r.begin), false);
    });
    b_.post(kConsumed);
  }

  void device(uint32_t ahead) {
    const Range all = b_.whole();
    // The library sums to memory of the device that is laid out as the slots.
    const uint64_t slot = chunk_ + static_cast<uint64_t>(b_.world - static_cast<int>(b_.count)) * mine_.size(),
                   sums = b_.need_device(slot * b_.plan.slots);
    const Span own = b_.ring(b_.rank, 0);
    const auto sum = [&](uint64_t at) { return Builder::device(sums + at, slot); };
    b_.device_stage("copy out", ahead);
    b_.wait(b_.rank, kReady);
    b_.move(ext(b_.rank, all), own, Builder::output(0, 0));
    b_.device_stage("island", 0);
    b_.together();
    for (const When when : kFullAndPart)
      for (const int d : b_.outside()) scatter_sum(b_, static_cast<uint32_t>(d), sum(place(b_.rank, d)), when);
    for (size_t j = 0; j < b_.count; ++j) {
      const int block = b_.members[j];
      b_.call(IslandCall::Reduce, When::Always, ext(block, all), user(block, 0), sum(0), static_cast<int>(j));
    }
    b_.device_stage("copy in", 0, true);
    b_.move_for(When::FullChunk, {Memory::Scratch, 0, 0, 0, slot}, sum(0), own);
    b_.move_for(When::PartChunk, ext(b_.rank, all), sum(0), own);
    for (const int d : b_.outside())
      b_.move_for(When::PartChunk, ext(d, mine_), sum(place(b_.rank, d)), b_.ring(b_.rank, place(b_.rank, d)));
    b_.post(kStaged);
  }

  Builder &b_;
  const Hosts hosts_;
  const uint64_t chunk_;
  const Range mine_;
};

}  // namespace

void plan_hosts_reduce_scatter(Builder &b) {
  b.choose_island_chunk(HostReduceScatter::share(b));
  HostReduceScatter reduce_scatter(b);
  b.library ? reduce_scatter.plan_served() : reduce_scatter.plan_unserved();
}

}  // namespace isthmus::plan
