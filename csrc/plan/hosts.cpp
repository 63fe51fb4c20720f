// The all_reduce of islands that meet on several hosts, some of them served by libraries. On each host every rank reads the slots of every
// other, and only sums of a whole host cross to another host.
//
//   1. The library sums inside its island. Rank j of g has the j-th piece of the chunk in its slot; a rank that no library serves has all.
//   2. The ranks of a host reduce what lies in its slots, each a part, and send the sums to the hosts that finish them.
//   3. The finishers round, and send the results to the hosts that have contributed. There they are what these hosts need.
//   4. Every rank takes its piece out of the slots of its host, and the library gathers the pieces.
//
// ZONES. Which hosts contribute differs along the chunk: an island's piece is with one rank. A zone is a range of the chunk for which each host
// has nothing to contribute, or what one island alone has, or a sum. The hosts of a zone split it in domains, and finish one each. Where one
// host is a zone's only host, nothing of the zone crosses.
// PARTS. Where a host has a sum to make, each of its ranks takes an equal part of a domain. Where it has what one island alone has, each rank of
// the island takes of the domain what it has, and sends it from its slot.
//
// ORDER. A result is the sum over hosts, by their lowest ranks, of the sum over what each has: island by island, rank by rank. So it does not depend
// on who finishes it.
//
// The counters are those of shared_islands.cpp. A slot is filled again when its readers have consumed it and the links have taken what was sent
// of it: a rank says that it has consumed a chunk behind both.
#include "plan/hosts.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "plan/takes.hpp"

namespace isthmus::plan {

Hosts::Hosts(const Builder &b) : of(static_cast<size_t>(b.world)), at(static_cast<size_t>(b.world)) {
  std::map<int, size_t> known;
  for (int q = 0; q < b.world; ++q) {
    const auto rank = static_cast<size_t>(q);
    const auto [host, fresh] = known.try_emplace(b.topology.memory_of[rank], members.size());
    if (fresh) {
      members.emplace_back();
      rates_.push_back(0);
    }
    of[rank] = host->second;
    at[rank] = members[host->second].size();
    members[host->second].push_back(q);
    const auto island = static_cast<size_t>(b.topology.island_of[rank]);
    const double weight = island < b.topology.weights.size() ? b.topology.weights[island] : 1.0;
    rates_[host->second] += weight / static_cast<double>(b.topology.islands[island].ranks.size());
  }
  here = of[static_cast<size_t>(b.rank)];
  place_ = at[static_cast<size_t>(b.rank)];
}

std::vector<Range> Hosts::domains(Range range, const std::vector<bool> &takes) const {
  std::vector<size_t> owners;
  std::vector<double> rates;
  for (size_t h = 0; h < count(); ++h)
    if (takes[h]) {
      owners.push_back(h);
      rates.push_back(rates_[h]);
    }
  const std::vector<double> shares = bridge_shares(rates);
  std::vector<Range> out(count());
  const uint64_t lines = range.size() / kLine;
  uint64_t begin = range.begin;
  double sum = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    sum += shares[i];
    const auto upto = std::min(lines, static_cast<uint64_t>(std::floor(sum * static_cast<double>(lines) + 0.5)));
    const uint64_t end = i + 1 == owners.size() ? range.end : std::max(begin, range.begin + upto * kLine);
    out[owners[i]] = {begin, end};
    begin = end;
  }
  return out;
}

namespace {

// The host list is a turn longer for each time that bytes cross. The device is as many turns ahead as it needs to stage a chunk before the gate
// of an earlier one is opened (shared_islands.cpp).
struct HostTurns {
  uint32_t reduce, finish, collect, ahead;
};
constexpr HostTurns kInside{1, 1, 2, 3}, kCrossing{1, 2, 3, 4};
static_assert(kLeastIslandSlots > 2 * kCrossing.ahead - kCrossing.collect &&
              kLeastIslandSlots > 2 * kInside.ahead - kInside.collect);

class HostSums {
 public:
  static constexpr ptrdiff_t kNothing = -1, kSum = -2;
  struct SumZone {
    Range range;
    std::vector<ptrdiff_t> has;  // by host: kNothing, kSum, or the cluster that alone has something there
    std::vector<Range> domains;  // by host
  };
  // What a rank reduces or sends of a chunk. Its host is `domain`: it finishes it. `slot`: where the result lies in the rank's slot.
  struct SumPart {
    const SumZone *zone;
    size_t domain;
    Range range;
    uint64_t slot;
  };

  explicit HostSums(const Builder &b) : hosts(b), b_(b) {
    std::vector<uint64_t> cuts{0, b.plan.chunk};
    for (int q = 0; q < b.world; ++q)
      for (const uint64_t at : {given_by(b, q).begin, given_by(b, q).end}) cuts.push_back(at);
    each_between(std::move(cuts), [&](Range r) { add(r); });
    for (SumZone &z : zones_) {
      std::vector<bool> takes;
      for (const ptrdiff_t has : z.has) takes.push_back(has != kNothing);
      z.domains = hosts.domains(z.range, takes);
    }
  }

  const Hosts hosts;

  // Of a zone: whether anything crosses there, and of any zone.
  static bool crosses(const SumZone &z) {
    return z.has.size() - static_cast<size_t>(std::count(z.has.begin(), z.has.end(), kNothing)) > 1;
  }
  bool crosses() const {
    return std::any_of(zones_.begin(), zones_.end(), [](const SumZone &z) { return crosses(z); });
  }
  // The part of that domain which rank q takes.
  Range part_of(const SumZone &z, size_t domain, int q) const {
    const auto rank = static_cast<size_t>(q);
    const size_t h = hosts.of[rank];
    if (z.has[h] == kNothing) return {};
    if (z.has[h] == kSum) return piece_of(z.domains[domain], hosts.members[h].size(), hosts.at[rank]);
    return static_cast<size_t>(z.has[h]) == cluster_of(b_, q) ? intersect(z.domains[domain], given_by(b_, q)) : Range{};
  }
  std::vector<SumPart> parts(int q) const {
    std::vector<SumPart> out;
    uint64_t behind = given_by(b_, q).size();  // its contribution, where others read that
    for (const SumZone &z : zones_)
      for (size_t d = 0; d < hosts.count(); ++d)
        if (const Range r = part_of(z, d, q); !r.empty()) {
          out.push_back({&z, d, r, served(b_, q) ? behind : r.begin});
          if (served(b_, q)) behind += r.size();
        }
    return out;
  }
  uint64_t slot_bytes(int q) const {
    uint64_t end = given_by(b_, q).size();
    for (const SumPart &p : parts(q)) end = std::max(end, p.slot + p.range.size());
    return end;
  }
  // f(rank, range): the ranks of host h whose parts of that domain have something of `p`.
  template <class F>
  void each_there(size_t h, const SumPart &p, F f) const {
    for (const int q : hosts.members[h])
      if (const Range x = intersect(p.range, part_of(*p.zone, p.domain, q)); !x.empty()) f(q, x);
  }

 private:
  void add(Range r) {
    std::vector<ptrdiff_t> has(hosts.count(), kNothing);
    std::vector<size_t> ranks(hosts.count());
    for (int q = 0; q < b_.world; ++q) {
      if (intersect(given_by(b_, q), r).empty()) continue;
      const size_t h = hosts.of[static_cast<size_t>(q)];
      has[h] = ++ranks[h] > 1 ? kSum : static_cast<ptrdiff_t>(cluster_of(b_, q));
    }
    if (!zones_.empty() && zones_.back().has == has) zones_.back().range.end = r.end;
    else zones_.push_back({r, std::move(has), {}});
  }

  const Builder &b_;
  std::vector<SumZone> zones_;
};

// The steps of one rank.
class HostAllReduce {
 public:
  explicit HostAllReduce(Builder &b)
      : b_(b),
        sums_(b),
        hosts_(sums_.hosts),
        parts_(sums_.parts(b.rank)),
        given_(given_by(b, b.rank)),
        crosses_(sums_.crosses()),
        turns_(crosses_ ? kCrossing : kInside) {
    for (int q = 0; q < b.world; ++q) b.need_ring(sums_.slot_bytes(q));
  }

  void plan_unserved() {
    b_.stage("copy in", 0);
    hosts_.each_neighbour([&](int q) { b_.wait_reuse(q, kConsumed); });
    std::vector<Range> holes;
    for (const SumPart &p : parts_) holes.push_back(p.range);
    std::sort(holes.begin(), holes.end(), [](Range a, Range c) { return a.begin < c.begin; });
    for (const Range &r : complement(b_.plan.chunk, holes))
      b_.move(ext(r), Builder::input(0, r.begin), b_.ring(b_.rank, r.begin));
    b_.post(kCopied);
    sum();
    b_.stage("copy out", turns_.collect);
    hosts_.each_neighbour([&](int q) {
      b_.wait(q, kReduced);
      for (const SumPart &p : sums_.parts(q)) b_.move(ext(p.range), b_.ring(q, p.slot), output(p.range), false, b_.stream);
    });
    if (crosses_) b_.taken();
    b_.post(kConsumed);
  }

  void plan_served() {
    const uint32_t ahead = std::min(turns_.ahead, b_.plan.chunks);
    Takes takes(b_);
    hosts_.each_neighbour([&](int q) {
      for (const SumPart &p : sums_.parts(q)) {
        const Range x = intersect(p.range, given_);
        takes.add(q, ext(x), p.slot + (x.begin - p.range.begin), output(x));
      }
    });
    device(takes, ahead);
    sum();
    b_.stage("take", turns_.collect);
    takes.arrive(kReduced);
    // Behind this gate the device fills the slot of a chunk that comes `ahead` later.
    hosts_.each_neighbour([&](int q) { b_.wait_reuse(q, kConsumed, ahead); });
    b_.post(kReady);
    // Last in its turn: the gate of an earlier chunk is open while the device still stages this one, or its two streams would take turns.
    b_.stage("give", 0);
    b_.wait(b_.rank, kStaged);
    b_.post(kCopied);
    if (!b_.reuses()) return;
    b_.stage("taken", ahead);
    if (crosses_) b_.taken();
    b_.post(kConsumed);
  }

 private:
  using SumPart = HostSums::SumPart;

  Extent ext(Range r) const { return b_.extent(Memory::Input, 0, r); }
  static Span output(Range r) { return Builder::output(0, r.begin); }
  Span slot(const SumPart &p, Range r) const { return b_.ring(b_.rank, p.slot + (r.begin - p.range.begin)); }
  Span own(Range r) const { return b_.library ? b_.ring(b_.rank, r.begin - given_.begin) : Builder::input(0, r.begin); }
  ptrdiff_t has(const SumPart &p, size_t host) const { return p.zone->has[host]; }
  uint64_t wide(const SumPart &p, size_t host) const { return has(p, host) == HostSums::kSum ? b_.ratio : 1; }

  // Calls f(range, sources) for every range of `part` within which the contributions of this host lie in the same slots. Sources stand island by
  // island and rank by rank.
  template <class F>
  void each_sum(Range part, F f) const {
    std::vector<uint64_t> cuts{part.begin, part.end};
    for (const int q : hosts_.neighbours())
      for (const uint64_t at : {given_by(b_, q).begin, given_by(b_, q).end})
        if (at > part.begin && at < part.end) cuts.push_back(at);
    each_between(std::move(cuts), [&](Range r) {
      std::vector<Span> sources;
      for (size_t h = 0; h < b_.clusters.members.size(); ++h)
        for (const int q : b_.clusters.members[h]) {
          const Range g = given_by(b_, q);
          if (hosts_.of[static_cast<size_t>(q)] != hosts_.here || intersect(g, r).empty()) continue;
          sources.push_back(b_.contribution(h, q == b_.rank ? own(r) : b_.ring(q, r.begin - g.begin)));
        }
      f(r, sources);
    });
  }

  // What the host list does about the sums, the same for all ranks.
  void sum() {
    b_.stage("reduce", turns_.reduce);
    hosts_.each_neighbour([&](int q) {
      const bool needed = std::any_of(parts_.begin(), parts_.end(), [&](const SumPart &p) {
        return has(p, hosts_.here) == HostSums::kSum && !intersect(p.range, given_by(b_, q)).empty();
      });
      if (needed) b_.wait(q, kCopied);
    });
    for (const SumPart &p : parts_)
      if (p.domain != hosts_.here) give(p);
    b_.stage("finish", turns_.finish);
    for (const SumPart &p : parts_)
      if (p.domain == hosts_.here) finish(p);
    if (!crosses_) return b_.post(kReduced);
    b_.stage("collect", turns_.collect);
    for (const SumPart &p : parts_) {
      if (p.domain == hosts_.here) continue;
      sums_.each_there(p.domain, p, [&](int q, Range x) { b_.recv(q, ext(x), slot(p, x)); });
      if (!b_.library) b_.move(ext(p.range), slot(p, p.range), output(p.range));
    }
    b_.post(kReduced);
  }

  // The host's contribution to a part that another host finishes.
  void give(const SumPart &p) {
    Span from = own(p.range);
    if (has(p, hosts_.here) == HostSums::kSum) {
      from = Builder::scratch(b_.need_scratch(p.range.size() * b_.ratio), true);
      each_sum(p.range, [&](Range r, const auto &sources) {
        Span to = from;
        to.base += (r.begin - p.range.begin) * b_.ratio;
        b_.reduce(ext(r), sources, {}, to, true);
      });
    }
    sums_.each_there(p.domain, p, [&](int q, Range x) {
      Span part = from;
      part.base += (x.begin - p.range.begin) * wide(p, hosts_.here);
      b_.send(q, ext(x), part);
    });
  }

  // A part that this rank finishes: hosts in order, this one's contributions as they lie in its slots.
  void finish(const SumPart &p) {
    std::vector<uint64_t> from(hosts_.count());
    for (size_t h = 0; h < hosts_.count(); ++h) {
      if (h == hosts_.here || has(p, h) == HostSums::kNothing) continue;
      from[h] = b_.need_scratch(p.range.size() * wide(p, h));
      sums_.each_there(h, p, [&](int q, Range x) { b_.recv(q, ext(x), there(p, h, from[h], x)); });
    }
    each_sum(p.range, [&](Range r, const auto &sources) {
      std::vector<Span> all;
      std::vector<uint32_t> groups;
      for (size_t h = 0; h < hosts_.count(); ++h) {
        if (h == hosts_.here) {
          all.insert(all.end(), sources.begin(), sources.end());
        } else if (has(p, h) != HostSums::kNothing) {
          const Span x = there(p, h, from[h], r);
          all.push_back(has(p, h) == HostSums::kSum ? x : b_.contribution(static_cast<size_t>(has(p, h)), x));
        } else {
          continue;
        }
        groups.push_back(static_cast<uint32_t>(all.size()));
      }
      const Span to = output(r);
      b_.reduce(ext(r), all, groups, slot(p, r), false, b_.library ? nullptr : &to, b_.stream);
    });
    for (size_t i = 1; i < hosts_.count(); ++i) {
      const size_t h = (hosts_.here + i) % hosts_.count();
      if (has(p, h) != HostSums::kNothing) sums_.each_there(h, p, [&](int q, Range x) { b_.send(q, ext(x), slot(p, x)); });
    }
  }
  // The contribution of host h to `r`, which was received at `at` of scratch.
  Span there(const SumPart &p, size_t h, uint64_t at, Range r) const {
    return Builder::scratch(at + (r.begin - p.range.begin) * wide(p, h), has(p, h) == HostSums::kSum);
  }

  void device(const Takes &takes, uint32_t ahead) {
    b_.device_stage("copy out", ahead);
    b_.together();
    b_.wait(b_.rank, kReady);
    for (const SumPart &p : parts_) {
      const Range x = intersect(p.range, given_);
      b_.move(ext(x), slot(p, x), output(x));
    }
    takes.copy();
    gather_pieces(b_, Memory::Input, Builder::output(0, 0));
    b_.device_stage("island", 0);
    b_.together();
    for (const When when : kFullAndPart) scatter_sum(b_, 0, output(given_), when);
    b_.device_stage("copy in", 0, true);
    b_.move(ext(given_), output(given_), b_.ring(b_.rank, 0));
    b_.post(kStaged);
  }

  Builder &b_;
  const HostSums sums_;
  const Hosts &hosts_;
  const std::vector<SumPart> parts_;
  const Range given_;
  const bool crosses_;
  const HostTurns turns_;
};

}  // namespace

void plan_hosts_all_reduce(Builder &b) {
  // A served rank's slot has its piece, of that at most as much again where its host has nothing else, and else an equal part of what its host has.
  const Hosts hosts(b);
  SlotShare share{0, 1};
  for (int q = 0; q < b.world; ++q) {
    const uint64_t ranks = hosts.members[hosts.of[static_cast<size_t>(q)]].size(), size = b.clusters.size(cluster_of(b, q));
    share = SlotShare::most(share, served(b, q) ? SlotShare{2 * ranks + size, size * ranks} : SlotShare{});
  }
  b.choose_island_chunk(share);
  HostAllReduce all_reduce(b);
  b.library ? all_reduce.plan_served() : all_reduce.plan_unserved();
}

}  // namespace isthmus::plan
