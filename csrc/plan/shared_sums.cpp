// Templates of the reductions where libraries serve some ranks and all stand on one host (shared_slots.hpp). The library sums in its island; what it
// gives lies in slots. Each byte is then reduced once, by one rank, in one pass over the slots of all.
//
// The device of a served rank works as in islands.cpp: copies out of slots and calls that spread them, then the calls that sum, and beside both, on
// the second stream, the copy of the sum into the slot. Sums that have no place in the user's memory take turns through memory of the device, one
// place a slot: the sum of chunk c + slots comes behind the gate of a chunk that was reduced after chunk c was copied into its slot.
#include <algorithm>

#include "plan/shared_slots.hpp"

namespace isthmus::plan {
namespace {

size_t place_of(const Builder &b, int q) { return b.clusters.at[static_cast<size_t>(q)]; }

template <class F>
void each_other(const Builder &b, F f) {
  for (int i = 1; i < b.world; ++i) f((b.rank + i) % b.world);
}

// Calls f(range, sources, ends) for every range of `part` within which the contributions lie in the same slots. Sources stand island by island
// and rank by rank. given(q): the part of the chunk that the slot of q has, in its place(q) there. own(range): where this rank's contribution lies.
template <class Given, class Place, class Own, class F>
void each_reduction(const Builder &b, Range part, Given given, Place place, Own own, F f) {
  std::vector<uint64_t> cuts{part.begin, part.end};
  for (int q = 0; q < b.world; ++q)
    for (const uint64_t at : {given(q).begin, given(q).end})
      if (at > part.begin && at < part.end) cuts.push_back(at);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const Range r{cuts[i], cuts[i + 1]};
    std::vector<Span> sources;
    std::vector<uint32_t> ends;
    for (const auto &members : b.clusters.members) {
      for (const int q : members)
        if (const Range g = given(q); !intersect(g, r).empty())
          sources.push_back(
              b.contribution(cluster_of(b, q), q == b.rank ? own(r) : b.ring(q, place(q) + (r.begin - g.begin))));
      ends.push_back(static_cast<uint32_t>(sources.size()));
    }
    f(r, sources, ends);
  }
}
constexpr uint64_t at_begin(int) { return 0; }

// Small messages: the library sums. Then its first rank, and every rank that no library serves, reduces what lies in all slots, each for itself.
void small_shared_all_reduce(Builder &b) {
  b.plan.chunk = (b.request.bytes + kLine - 1) / kLine * kLine;
  b.plan.chunks = b.plan.slots = 1;
  const Range all = b.whole();
  b.need_ring(2 * all.size());
  const auto e = b.extent(Memory::Input, 0, all);
  const Span input = Builder::input(0, 0), output = Builder::output(0, 0), mine = b.ring(b.rank, 0),
             result = b.ring(b.rank, all.size());
  const auto sum = [&](Span own, Span to) {
    std::vector<Span> sources;
    std::vector<uint32_t> ends;
    for (size_t h = 0; h <= b.others; ++h) {
      for (size_t j = 0; j < (b.clusters.library[h] ? 1 : b.clusters.size(h)); ++j) {
        const int q = b.at(h, j);
        if (q != b.rank) b.wait(q, kCopied);
        sources.push_back(b.contribution(h, q == b.rank ? own : b.ring(q, 0)));
      }
      ends.push_back(static_cast<uint32_t>(sources.size()));
    }
    b.reduce(e, sources, ends, to, false);
  };
  if (!b.library) {
    b.stage("copy in", 0);
    b.move(e, input, mine);
    b.post(kCopied);
    b.stage("finish", 0);
    return sum(input, output);
  }
  leader_stage(b, e, mine, result);
  if (b.position != 0) return;
  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  b.stage("finish", 0);
  sum(mine, result);
  b.post(kReady);
}

// Who reduces what of a chunk in a reduce: the ranks of the root's island a piece each; of a small message the root all of it. And what lies in
// whose slot. Of a small message the first rank of an island with a library has the island's sum, and its root has its own island's.
class Reducers {
 public:
  explicit Reducers(const Builder &b)
      : b_(b), home_(cluster_of(b, b.request.root)), small_(b.request.bytes <= b.request.small_bytes) {}
  bool small() const noexcept { return small_; }
  bool at_home() const noexcept { return b_.cluster == home_; }
  size_t leader(size_t h) const { return h == home_ ? place_of(b_, b_.request.root) : 0; }
  Range reduced_by(int q) const { return cluster_of(b_, q) == home_ ? piece(q) : Range{}; }
  Range given(int q) const { return served(b_, q) ? piece(q) : b_.whole(); }
  // Calls f(q) for the other ranks that reduce.
  template <class F>
  void each_other_reducer(F f) const {
    each_other(b_, [&](int q) {
      if (!reduced_by(q).empty()) f(q);
    });
  }

 private:
  Range piece(int q) const {
    const size_t h = cluster_of(b_, q), j = place_of(b_, q);
    return !small_ ? piece_at(b_, h, j) : j == leader(h) ? b_.whole() : Range{};
  }
  const Builder &b_;
  const size_t home_;
  const bool small_;
};

// Of a rank that no library serves. Its result is in its slot, or in the output if it is the root.
void reduce_by_host(Builder &b, const Reducers &who) {
  const int root = b.request.root;
  const Range done = who.reduced_by(b.rank);
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const std::vector<Range> given = complement(b.plan.chunk, {done});
  if (!given.empty()) {
    b.stage("copy in", 0);
    who.each_other_reducer([&](int q) { b.wait_reuse(q, kReduced); });
    if (!done.empty() && b.rank != root) b.wait_reuse(root, kConsumed);
    for (const Range &r : given) b.move(ext(r), Builder::input(0, r.begin), b.ring(b.rank, r.begin));
    b.post(kCopied);
  }
  if (done.empty()) return;
  b.stage("finish", kTurn);
  each_other(b, [&](int q) { b.wait(q, kCopied, ext(intersect(who.given(q), done))); });
  each_reduction(
      b, done, [&](int q) { return who.given(q); }, at_begin, [](Range r) { return Builder::input(0, r.begin); },
      [&](Range r, const auto &sources, const auto &ends) {
        b.reduce(ext(r), sources, ends, b.rank == root ? Builder::output(0, r.begin) : b.ring(b.rank, r.begin), false);
      });
  b.post(kReduced);
  if (b.rank != root || b.count == 1 || who.small()) return;
  b.stage("copy out", kTurn + 1);
  b.each_other_member([&](int q) {
    const Range r = who.reduced_by(q);
    b.wait(q, kReduced, ext(r));
    b.move(ext(r), b.ring(q, r.begin), Builder::output(0, r.begin), false, b.stream);
  });
  b.post(kConsumed);
}

// The device list of a rank that a library serves.
void reduce_by_device(Builder &b, const Reducers &who) {
  const Range mine = who.given(b.rank);
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const uint64_t place = who.small() ? b.plan.chunk : mine.size();
  const Span sum = Builder::device(b.need_device(place * b.plan.slots), place);
  if (who.at_home()) {  // the pieces come together at the root: in its output, and elsewhere in memory that nobody reads
    const uint64_t at = b.rank == b.request.root || who.small() ? 0 : b.need_device(b.plan.chunk);
    const auto gathered = [&](uint64_t begin) {
      return b.rank == b.request.root ? Builder::output(0, begin) : Builder::device(at + begin);
    };
    b.device_stage("copy out", ahead_of(b));
    b.together();
    if (!mine.empty()) {
      b.wait(b.rank, kReady);
      b.move(ext(mine), b.ring(b.rank, 0), gathered(mine.begin));
    }
    if (!who.small()) gather_pieces(b, Memory::Input, gathered(0));
  }
  b.device_stage("island", 0);
  b.together();
  if (!who.at_home() && !mine.empty()) b.wait_reuse(b.rank, kReady);
  if (who.small())
    b.call(IslandCall::Reduce, When::Always, ext(b.whole()), Builder::input(0, 0), sum,
           static_cast<int>(who.leader(b.cluster)));
  else
    for (const When when : kFullAndPart) scatter_sum(b, 0, sum, when);
  if (mine.empty()) return;
  b.device_stage("copy in", 0, true);
  b.move(ext(mine), sum, b.ring(b.rank, 0));
  b.post(kStaged);
}

}  // namespace

// Every rank reduces an equal part of the chunk in one pass over the slots of all, whatever pieces the islands make of the chunk. Then a rank
// that no library serves reads the whole result. A rank of an island reads its piece, which the library gathers.
void plan_shared_all_reduce(Builder &b) {
  if (b.request.bytes <= b.request.small_bytes) return small_shared_all_reduce(b);
  const auto world = static_cast<uint64_t>(b.world);  // a slot has the rank's piece, and behind it what the rank reduces
  b.choose_island_chunk(share_of_slots(
      b,
      [world](uint64_t size) {
        return SlotShare{world + size, world * size};
      },
      SlotShare{}));
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  const auto output = [](Range r) { return Builder::output(0, r.begin); };
  const auto reduced_by = [&](int q) { return piece_of(b.whole(), static_cast<size_t>(b.world), static_cast<size_t>(q)); };
  // Where the result lies in the slot of q: in the place of its own contribution where nobody else reads that, else behind it.
  const auto result_at = [&](int q) { return served(b, q) ? given_by(b, q).size() : reduced_by(q).begin; };
  for (int q = 0; q < b.world; ++q) b.need_ring(std::max(given_by(b, q).size(), result_at(q) + reduced_by(q).size()));
  const Range done = reduced_by(b.rank), mine = given_by(b, b.rank);
  const auto slot = [&](Range r) { return b.ring(b.rank, result_at(b.rank) + (r.begin - done.begin)); };
  const auto given = [&](int q) { return given_by(b, q); };

  if (!b.library) {
    b.stage("copy in", 0);
    each_other(b, [&](int q) { b.wait_reuse(q, kConsumed); });
    for (const Range &r : complement(b.plan.chunk, {done}))
      b.move(ext(r), Builder::input(0, r.begin), b.ring(b.rank, r.begin));
    b.post(kCopied);
    b.stage("finish", kTurn);
    each_other(b, [&](int q) { b.wait(q, kCopied, ext(intersect(given_by(b, q), done))); });
    each_reduction(
        b, done, given, at_begin, [](Range r) { return Builder::input(0, r.begin); },
        [&](Range r, const auto &sources, const auto &ends) {
          const Span to = output(r);
          b.reduce(ext(r), sources, ends, slot(r), false, &to, b.stream);
        });
    b.post(kReduced);
    b.stage("copy out", kTurn + 1);
    each_other(b, [&](int q) {
      b.wait(q, kReduced);
      b.move(ext(reduced_by(q)), b.ring(q, result_at(q)), output(reduced_by(q)), false, b.stream);
    });
    return b.post(kConsumed);
  }

  const uint32_t ahead = ahead_of(b);
  Takes takes(b);
  each_other(b, [&](int q) {
    const Range x = intersect(reduced_by(q), mine);
    takes.add(q, ext(x), result_at(q) + (x.begin - reduced_by(q).begin), output(x));
  });
  b.device_stage("copy out", ahead);
  b.together();
  b.wait(b.rank, kReady);
  const Range own = intersect(done, mine);
  b.move(ext(own), slot(own), output(own));
  takes.copy();
  gather_pieces(b, Memory::Input, Builder::output(0, 0));
  b.device_stage("island", 0);
  b.together();
  for (const When when : kFullAndPart) scatter_sum(b, 0, output(mine), when);
  b.device_stage("copy in", 0, true);
  b.move(ext(mine), output(mine), b.ring(b.rank, 0));
  b.post(kStaged);

  b.stage("finish", kTurn);
  each_other(b, [&](int q) { b.wait(q, kCopied, ext(intersect(given_by(b, q), done))); });
  each_reduction(
      b, done, given, at_begin, [&](Range r) { return b.ring(b.rank, r.begin - mine.begin); },
      [&](Range r, const auto &sources, const auto &ends) { b.reduce(ext(r), sources, ends, slot(r), false); });
  b.post(kReduced);
  b.stage("collect", kTurn + 1);
  takes.arrive(kReduced);
  // Behind this gate the device fills the slot of a chunk that comes `ahead` later.
  each_other(b, [&](int q) { b.wait_reuse(q, kConsumed, ahead); });
  b.post(kReady);
  // Last in its turn: the gate of an earlier chunk is open while the device still stages this one, or its two streams would take turns.
  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  if (!b.reuses()) return;
  b.stage("taken", ahead);
  b.post(kConsumed);
}

// The ranks of the root's island reduce a piece each, and the library gathers the pieces. A root that no library serves reads what the ranks of its
// island have reduced.
void plan_shared_reduce(Builder &b) {
  b.choose_island_chunk(share_of_slots(
      b,
      [](uint64_t size) {
        return SlotShare{1, size};
      },
      SlotShare{}));
  const Reducers who(b);
  for (int q = 0; q < b.world; ++q)
    b.need_ring(served(b, q)                                            ? who.given(q).size()
                : complement(b.plan.chunk, {who.reduced_by(q)}).empty() ? 0
                                                                        : b.plan.chunk);
  if (!b.library) return reduce_by_host(b, who);
  reduce_by_device(b, who);
  const Range mine = who.given(b.rank);
  if (mine.empty()) return;
  const auto ext = [&](Range r) { return b.extent(Memory::Input, 0, r); };
  if (!who.at_home()) {
    b.stage("give", 0);
    b.wait(b.rank, kStaged);
    b.post(kCopied);
    if (!b.reuses()) return;
    b.stage("consumed", kAhead);
    who.each_other_reducer([&](int q) { b.wait(q, kReduced, ext(intersect(who.reduced_by(q), mine))); });
    return b.post(kReady);  // to be filled again
  }
  b.stage("finish", 0);
  b.wait(b.rank, kStaged);
  each_other(b, [&](int q) { b.wait(q, kCopied, ext(intersect(who.given(q), mine))); });
  const auto slot = [&](Range r) { return b.ring(b.rank, r.begin - mine.begin); };
  each_reduction(
      b, mine, [&](int q) { return who.given(q); }, at_begin, slot,
      [&](Range r, const auto &sources, const auto &ends) { b.reduce(ext(r), sources, ends, slot(r), false); });
  b.post(kReduced);
  b.post(kReady);
}

// Every rank reduces its block. The library gives a rank the sum of a piece of every block, all of a chunk in one group of calls, and one copy brings
// them to the slot.
// No slot needs an answer. A rank fills the slot of chunk c again when it has what all others gave of chunk c + slots - kAhead - 1 at the least. Each of
// them had by then reduced the chunk before the one before that.
void plan_shared_reduce_scatter(Builder &b) {
  const auto world = static_cast<uint64_t>(b.world);
  b.choose_island_chunk(share_of_slots(b, [world](uint64_t size) { return SlotShare{world, size}; }, {world - 1, 1}));
  const Range all = b.whole(), mine = given_by(b, b.rank);
  for (int q = 0; q < b.world; ++q) b.need_ring(served(b, q) ? world * given_by(b, q).size() : (world - 1) * all.size());
  const auto block = [&](int d, Range r) { return b.extent(Memory::Input, static_cast<uint32_t>(d), r); };
  const auto input = [](int d, uint64_t at) { return Builder::input(static_cast<uint32_t>(d), at); };
  // The place of block d in the slot of q. A rank that no library serves has its own block in its input.
  const auto place = [&](int q, int d) {
    const auto i = static_cast<uint64_t>(d);
    return served(b, q) ? i * given_by(b, q).size() : (d < q ? i : i - 1) * all.size();
  };
  const auto reduce = [&](auto own, Span to) {
    each_other(b, [&](int q) { b.wait(q, kCopied); });
    each_reduction(
        b, all, [&](int q) { return given_by(b, q); }, [&](int q) { return place(q, b.rank); }, own,
        [&](Range r, const auto &sources, const auto &ends) {
          Span part = to;
          part.base += r.begin;
          b.reduce(block(b.rank, r), sources, ends, part, false);
        });
  };

  if (!b.library) {
    b.stage("copy in", 0);
    each_other(b, [&](int q) { b.move(block(q, all), input(q, 0), b.ring(b.rank, place(b.rank, q))); });
    b.post(kCopied);
    b.stage("finish", kTurn);
    return reduce([&](Range r) { return input(b.rank, r.begin); }, Builder::output(0, 0));
  }

  const uint64_t sums = world * mine.size();
  const uint64_t at = b.need_device(sums * b.plan.slots);
  const auto sum = [&](int d) { return Builder::device(at + static_cast<uint64_t>(d) * mine.size(), sums); };
  const Span result = Builder::scratch(b.need_scratch(all.size()));
  b.device_stage("copy out", ahead_of(b));
  b.wait(b.rank, kReady);
  b.move(block(b.rank, all), result, Builder::output(0, 0));
  b.device_stage("island", 0);
  b.together();
  for (const When when : kFullAndPart)
    for (int d = 0; d < b.world; ++d) scatter_sum(b, static_cast<uint32_t>(d), sum(d), when);
  b.device_stage("copy in", 0, true);
  if (!b.varying) b.move_for(When::FullChunk, {Memory::Scratch, 0, 0, 0, sums}, sum(0), b.ring(b.rank, 0));
  for (int d = 0; d < b.world; ++d)
    b.move_for(b.varying ? When::Always : When::PartChunk, block(d, mine), sum(d), b.ring(b.rank, place(b.rank, d)));
  b.post(kStaged);

  b.stage("give", 0);
  b.wait(b.rank, kStaged);
  b.post(kCopied);
  b.stage("finish", kTurn);
  reduce([&](Range r) { return b.ring(b.rank, place(b.rank, b.rank) + (r.begin - mine.begin)); }, result);
  b.post(kReady);
}

}  // namespace isthmus::plan
