// Broadcast and all_gather of islands that meet on several hosts, some of them served by libraries (hosts.hpp). On each host every rank reads the
// slots of every other, and what another host needs crosses once, to ranks that share it.
//
// Counters of a rank:
//   kCopied     its own bytes lie in its slot: a root's chunk, or its block
//   kReduced    what it has received of other hosts lies there too
//   kConsumed   it has read chunk c of all slots that it reads, and the links have taken what it sent of chunk c
// Between a rank's two lists, as in shared_islands.cpp.
#include <algorithm>
#include <optional>

#include "plan/hosts.hpp"
#include "plan/takes.hpp"

namespace isthmus::plan {
namespace {

constexpr uint32_t kMovesTake = 2, kMovesAhead = 3;
static_assert(kLeastIslandSlots > 2 * kMovesAhead - kMovesTake);

// The ranks of the root's host read the root's slot. An island that has ranks there takes all of it by these ranks, and its library spreads it, to
// other hosts too. The root sends every other host what nobody else brings there: to each of the host's ranks a part, in domains as between islands
// (plan_broadcast), so a host passes its domain on to the others that need it. Of a host those ranks receive that read something, and they read the
// slots of all who have received.
class HostBroadcast {
 public:
  explicit HostBroadcast(Builder &b) : b_(b), hosts_(b), root_(b.request.root) {
    home_ = hosts_.of[static_cast<size_t>(root_)];
    near_.resize(b.clusters.members.size());
    for (const int q : hosts_.members[home_]) near_[cluster_of(b, q)].push_back(q);
    readers_.resize(hosts_.count());
    for (int q = 0; q < b.world; ++q) {
      needs_.push_back(need_of(q));
      if (reads(q)) readers_[hosts_.of[static_cast<size_t>(q)]].push_back(q);
    }
    std::vector<uint64_t> cuts{0, b.plan.chunk};
    for (int q = 0; q < b.world; ++q)
      for (const uint64_t at : {needed_by(q).begin, needed_by(q).end}) cuts.push_back(at);
    each_between(std::move(cuts), [&](Range r) { add(r); });
    for (MoveZone &z : zones_) z.domains = hosts_.domains(z.range, z.takes);
    for (int q = 0; q < b.world; ++q) b.need_ring(q == root_ ? b.plan.chunk : received_by(q));
    plan_taking();
  }

  void plan() {
    if (b_.rank == root_) return b_.library ? served_root() : root();
    if (b_.library) device();
    if (!reads(b_.rank)) return;
    if (hosts_.here != home_) receive();
    b_.library ? take() : copy_out();
  }

 private:
  struct MoveZone {
    Range range;
    std::vector<bool> takes;  // by host: somebody there needs it, and it is not the root's host
    std::vector<Range> domains;
  };
  // What a rank receives of a zone, and where it lies in its slot.
  struct MovePart {
    const MoveZone *zone;
    size_t domain;
    Range range;
    uint64_t slot;
  };

  Extent ext(Range r) const { return b_.extent(b_.rank == root_ ? Memory::Input : Memory::Output, 0, r); }
  static Span output(Range r) { return Builder::output(0, r.begin); }

  // What rank q reads in the slots of its host. The root's island has the chunk from its library. An island with ranks on the root's host has it
  // by these.
  Range need_of(int q) const {
    if (q == root_ || (served(b_, q) && cluster_of(b_, q) == cluster_of(b_, root_))) return {};
    if (!served(b_, q)) return b_.whole();
    const std::vector<int> &near = near_[cluster_of(b_, q)];
    if (near.empty()) return given_by(b_, q);
    const auto at = static_cast<size_t>(std::find(near.begin(), near.end(), q) - near.begin());
    return at < near.size() ? piece_of(b_.whole(), near.size(), at) : Range{};
  }
  Range needed_by(int q) const { return needs_[static_cast<size_t>(q)]; }
  bool reads(int q) const { return !needed_by(q).empty(); }
  void add(Range r) {
    std::vector<bool> takes(hosts_.count());
    for (int q = 0; q < b_.world; ++q)
      if (const size_t h = hosts_.of[static_cast<size_t>(q)]; h != home_ && !intersect(needed_by(q), r).empty())
        takes[h] = true;
    if (!zones_.empty() && zones_.back().takes == takes) zones_.back().range.end = r.end;
    else zones_.push_back({r, std::move(takes), {}});
  }
  Range part_of(const MoveZone &z, size_t domain, int q) const {
    const size_t h = hosts_.of[static_cast<size_t>(q)];
    if (!z.takes[h] || !reads(q)) return {};
    const std::vector<int> &readers = readers_[h];
    const auto at = static_cast<size_t>(std::find(readers.begin(), readers.end(), q) - readers.begin());
    return piece_of(z.domains[domain], readers.size(), at);
  }
  std::vector<MovePart> parts(int q) const {
    std::vector<MovePart> out;
    uint64_t at = 0;
    for (const MoveZone &z : zones_)
      for (size_t d = 0; d < hosts_.count(); ++d)
        if (const Range r = part_of(z, d, q); !r.empty()) {
          out.push_back({&z, d, r, at});
          at += r.size();
        }
    return out;
  }
  uint64_t received_by(int q) const {
    const std::vector<MovePart> all = parts(q);
    return all.empty() ? 0 : all.back().slot + all.back().range.size();
  }
  // Calls f(rank) for the ranks of this host that read this rank's slot.
  template <class F>
  void each_reader(F f) const {
    const std::vector<MovePart> mine = parts(b_.rank);
    hosts_.each_neighbour([&](int q) {
      const auto read = [&](const MovePart &p) { return !intersect(p.range, needed_by(q)).empty(); };
      if (b_.rank == root_ ? reads(q) : std::any_of(mine.begin(), mine.end(), read)) f(q);
    });
  }
  // Calls f(owner, place in its slot, range) for what this rank reads, its own slot included.
  template <class F>
  void each_taken(F f) const {
    const Range mine = needed_by(b_.rank);
    if (hosts_.here == home_) return f(root_, mine.begin, mine);
    for (const int q : readers_[hosts_.here])
      for (const MovePart &p : parts(q))
        if (const Range x = intersect(p.range, mine); !x.empty()) f(q, p.slot + (x.begin - p.range.begin), x);
  }
  uint8_t arrival() const { return hosts_.here == home_ ? kCopied : kReduced; }
  uint32_t turn() const { return hosts_.here == home_ ? 1 : kMovesTake; }

  // The root's frames: of each zone the domain of each host, to its ranks.
  template <class F>
  void each_frame(F f) const {
    for (const MoveZone &z : zones_)
      for (size_t i = 1; i < hosts_.count(); ++i) {
        const size_t h = (home_ + i) % hosts_.count();
        for (const int q : readers_[h])
          if (const Range x = part_of(z, h, q); !x.empty()) f(q, x);
      }
  }
  void root() {
    b_.stage("copy in", 0);
    each_reader([&](int q) { b_.wait_reuse(q, kConsumed); });
    b_.move(ext(b_.whole()), Builder::input(0, 0), b_.ring(b_.rank, 0));
    b_.post(kCopied);
    each_frame([&](int q, Range x) { b_.send(q, ext(x), Builder::input(0, x.begin)); });
    b_.move(ext(b_.whole()), Builder::input(0, 0), Builder::output(0, 0), false, b_.stream);
  }
  void served_root() {
    b_.device_stage("spread", 0);
    b_.wait_reuse(b_.rank, kReady);
    b_.move(ext(b_.whole()), Builder::input(0, 0), b_.ring(b_.rank, 0));
    b_.post(kStaged);
    b_.move(ext(b_.whole()), Builder::input(0, 0), Builder::output(0, 0));
    spread(b_.whole(), When::Always, root_);
    b_.stage("send", 0);
    b_.wait(b_.rank, kStaged);
    b_.post(kCopied);
    each_frame([&](int q, Range x) { b_.send(q, ext(x), b_.ring(b_.rank, x.begin)); });
    if (!b_.reuses()) return;
    b_.stage("consumed", kMovesAhead);
    each_reader([&](int q) { b_.wait(q, kConsumed); });
    b_.taken();
    b_.post(kReady);  // to be filled again
  }

  // The library's part.
  void spread(Range r, When when, int from) {
    b_.call(IslandCall::Broadcast, when, ext(r), output(r), output(r),
            static_cast<int>(b_.clusters.at[static_cast<size_t>(from)]));
  }
  void plan_taking() {
    if (!b_.library || !reads(b_.rank)) return;
    takes_.emplace(b_);
    each_taken([&](int q, uint64_t at, Range x) {
      if (q != b_.rank) takes_->add(q, ext(x), at, output(x));
    });
  }
  void device() {
    if (cluster_of(b_, b_.rank) == cluster_of(b_, root_)) {
      b_.device_stage("spread", 0);
      return spread(b_.whole(), When::Always, root_);
    }
    const Range mine = needed_by(b_.rank);
    b_.device_stage("copy out", 0);
    b_.together();
    if (!mine.empty()) {
      b_.wait(b_.rank, kReady);
      each_taken([&](int q, uint64_t at, Range x) {
        if (q == b_.rank) b_.move(ext(x), b_.ring(q, at), output(x));
      });
      takes_->copy();
      if (b_.reuses()) b_.post(kTaken);
    }
    if (const std::vector<int> &near = near_[b_.cluster]; !near.empty()) {
      for (const int q : near) spread(needed_by(q), When::Always, q);
      return;
    }
    b_.call(IslandCall::AllGather, When::FullChunk, ext({0, mine.size()}), output(mine), Builder::output(0, 0));
    for (const int q : b_.members) spread(needed_by(q), When::PartChunk, q);
  }

  // On another host than the root's: what comes from the root, and from the other hosts.
  void receive() {
    const std::vector<MovePart> mine = parts(b_.rank);
    const auto slot = [&](const MovePart &p, Range x) { return b_.ring(b_.rank, p.slot + (x.begin - p.range.begin)); };
    const auto each_there = [&](const MovePart &p, size_t h, auto f) {
      for (const int q : readers_[h])
        if (const Range x = intersect(p.range, part_of(*p.zone, p.domain, q)); !x.empty()) f(q, x);
    };
    b_.stage("receive", 0);
    each_reader([&](int q) { b_.wait_reuse(q, kConsumed); });
    for (const MovePart &p : mine) {
      if (p.domain != hosts_.here) continue;
      b_.recv(root_, ext(p.range), slot(p, p.range));
      for (size_t i = 1; i < hosts_.count(); ++i) {
        const size_t h = (hosts_.here + i) % hosts_.count();
        if (h != home_ && p.zone->takes[h]) each_there(p, h, [&](int q, Range x) { b_.send(q, ext(x), slot(p, x)); });
      }
    }
    b_.stage("collect", 1);
    for (const MovePart &p : mine)
      if (p.domain != hosts_.here) each_there(p, p.domain, [&](int q, Range x) { b_.recv(q, ext(x), slot(p, x)); });
    b_.post(kReduced);
    b_.stage("sent", kMovesAhead);
    if (hosts_.count() > 2 && b_.reuses()) b_.taken();
  }
  void copy_out() {
    b_.stage("copy out", turn());
    each_taken([&](int q, uint64_t at, Range x) {
      if (q != b_.rank) b_.wait(q, arrival());
      b_.move(ext(x), b_.ring(q, at), output(x), false, b_.stream);
    });
    b_.post(kConsumed);
  }
  void take() {
    b_.stage("take", turn());
    takes_->arrive(arrival());
    b_.post(kReady);
    if (!b_.reuses()) return;
    b_.stage("taken", kMovesAhead);
    b_.wait(b_.rank, kTaken);
    b_.post(kConsumed);
  }

  Builder &b_;
  const Hosts hosts_;
  const int root_;
  size_t home_ = 0;
  std::vector<std::vector<int>> near_;     // by cluster: its ranks on the root's host
  std::vector<std::vector<int>> readers_;  // by host: its ranks that read anything
  std::vector<Range> needs_;               // by rank: what it reads
  std::vector<MoveZone> zones_;
  std::optional<Takes> takes_;
};

// Every rank's slot has its block, and behind it blocks of other hosts that the rank has received for its host: those who read a block there take
// turns. Ranks that no library serves read all blocks. An island's ranks take the blocks of the others by turns, those of a host where the island
// has ranks there, and spread these and their own by the library's broadcast.
class BlocksOfHosts {
 public:
  explicit BlocksOfHosts(const Builder &b) : hosts(b), b_(b), near_(b.clusters.members.size()) {
    for (size_t g = 0; g < near_.size(); ++g) {
      near_[g].resize(hosts.count());
      for (const int r : b.clusters.members[g]) near_[g][hosts.of[static_cast<size_t>(r)]].push_back(r);
    }
    std::vector<uint64_t> carried(static_cast<size_t>(b.world));
    for (size_t h = 0; h < hosts.count(); ++h) {
      size_t turn = 0;
      landings_.emplace_back(static_cast<size_t>(b.world));
      for (int q = 0; q < b.world; ++q) {
        const std::vector<int> readers = host_of(q) == h ? std::vector<int>{} : readers_on(h, q);
        if (readers.empty()) continue;
        const int carrier = readers[turn++ % readers.size()];
        landings_[h][static_cast<size_t>(q)] = {carrier, ++carried[static_cast<size_t>(carrier)]};
      }
    }
    regions = 1 + *std::max_element(carried.begin(), carried.end());
  }

  const Hosts hosts;
  uint64_t regions = 1;  // blocks in a slot

  size_t host_of(int q) const { return hosts.of[static_cast<size_t>(q)]; }
  // The rank of cluster g that takes the block of q for its island: one that stands on the host of q, where the island has one there.
  int taker(size_t g, int q) const {
    const auto &near = near_[g][host_of(q)];
    const auto &from = near.empty() ? b_.clusters.members[g] : near;
    return from[hosts.at[static_cast<size_t>(q)] % from.size()];
  }
  // Which rank of host h receives the block of q, and in which place of its slot; -1: nobody reads it there.
  struct Landing {
    int carrier = -1;
    uint64_t place = 0;
  };
  const Landing &landing(size_t h, int q) const { return landings_[h][static_cast<size_t>(q)]; }

 private:
  std::vector<int> readers_on(size_t h, int q) const {
    std::vector<int> out;
    for (const int r : hosts.members[h])
      if (!served(b_, r) || (cluster_of(b_, r) != cluster_of(b_, q) && taker(cluster_of(b_, r), q) == r)) out.push_back(r);
    return out;
  }

  const Builder &b_;
  std::vector<std::vector<std::vector<int>>> near_;  // by cluster and host: the cluster's ranks there
  std::vector<std::vector<Landing>> landings_;       // by host and rank
};

class HostAllGather {
 public:
  HostAllGather(Builder &b, const BlocksOfHosts &blocks)
      : b_(b), blocks_(blocks), hosts_(blocks.hosts), chunk_(b.plan.chunk) {
    b.need_ring(chunk_ * blocks.regions);
  }

  void plan_unserved() {
    b_.stage("copy in", 0);
    hosts_.each_neighbour([&](int q) { b_.wait_reuse(q, kConsumed); });
    b_.move(mine(), Builder::input(0, 0), b_.ring(b_.rank, 0));
    b_.post(kCopied);
    send(Builder::input(0, 0));
    b_.move(mine(), Builder::input(0, 0), output(b_.rank), false, b_.stream);
    collect();
    b_.stage("copy out", kMovesTake);
    for (int i = 1; i < b_.world; ++i) {
      const int q = (b_.rank + i) % b_.world, from = lies_with(q);
      if (from != b_.rank) b_.wait(from, arrival(q));
      b_.move(block(q), b_.ring(from, place(q)), output(q), false, b_.stream);
    }
    b_.taken();
    b_.post(kConsumed);
  }

  void plan_served() {
    const uint32_t ahead = std::min(kMovesAhead, b_.plan.chunks);
    const std::vector<int> outside = b_.outside();
    std::vector<int> taken;  // by this rank, of the island
    for (const int q : outside)
      if (blocks_.taker(b_.cluster, q) == b_.rank) taken.push_back(q);
    Takes takes(b_), carried(b_);
    for (const int q : taken)
      if (const int from = lies_with(q); from != b_.rank)
        (arrival(q) == kCopied ? takes : carried).add(from, block(q), place(q), output(q));
    b_.device_stage("copy out", ahead);
    b_.together();
    b_.wait(b_.rank, kReady);
    for (const int q : taken)
      if (lies_with(q) == b_.rank) b_.move(block(q), b_.ring(b_.rank, place(q)), output(q));
    takes.copy();
    carried.copy();
    for (const int q : outside) spread(q, blocks_.taker(b_.cluster, q));
    b_.device_stage("copy in", 0, true);
    b_.move(mine(), Builder::input(0, 0), b_.ring(b_.rank, 0));
    b_.post(kStaged);
    b_.device_stage("island", 0);
    b_.together();
    b_.move(mine(), Builder::input(0, 0), output(b_.rank));
    for (const int q : b_.members) spread(q, q);

    // The oldest chunk first: its gate is open while the device still stages the one that is sent, or its two streams would take turns.
    b_.stage("take", kMovesTake);
    takes.arrive(kCopied);
    carried.arrive(kReduced);
    // Behind this gate the device fills the slot of a chunk that comes `ahead` later.
    hosts_.each_neighbour([&](int q) { b_.wait_reuse(q, kConsumed, ahead); });
    b_.post(kReady);
    b_.stage("send", 0);
    b_.wait(b_.rank, kStaged);
    b_.post(kCopied);
    send(b_.ring(b_.rank, 0));
    collect();
    if (!b_.reuses()) return;
    b_.stage("taken", ahead);
    b_.taken();
    b_.post(kConsumed);
  }

 private:
  Extent mine() const { return b_.extent(Memory::Input, 0, b_.whole()); }
  Extent block(int q) const { return b_.extent(Memory::Output, static_cast<uint32_t>(q), b_.whole()); }
  static Span output(int q) { return Builder::output(static_cast<uint32_t>(q), 0); }
  bool is_near(int q) const { return blocks_.host_of(q) == hosts_.here; }
  // In which rank's slot this rank's host finds the block of q, and where there.
  int lies_with(int q) const { return is_near(q) ? q : blocks_.landing(hosts_.here, q).carrier; }
  uint64_t place(int q) const { return is_near(q) ? 0 : chunk_ * blocks_.landing(hosts_.here, q).place; }
  uint8_t arrival(int q) const { return is_near(q) ? kCopied : kReduced; }

  void send(Span from) {
    for (size_t i = 1; i < hosts_.count(); ++i)
      if (const int to = blocks_.landing((hosts_.here + i) % hosts_.count(), b_.rank).carrier; to >= 0)
        b_.send(to, block(b_.rank), from);
  }
  void collect() {
    b_.stage("collect", 1);
    bool any = false;
    for (int q = 0; q < b_.world; ++q) {
      if (is_near(q) || lies_with(q) != b_.rank) continue;
      b_.recv(q, block(q), b_.ring(b_.rank, place(q)));
      any = true;
    }
    if (any) b_.post(kReduced);
  }
  void spread(int q, int from) {
    b_.call(IslandCall::Broadcast, When::Always, block(q), output(q), output(q),
            static_cast<int>(b_.clusters.at[static_cast<size_t>(from)]));
  }

  Builder &b_;
  const BlocksOfHosts &blocks_;
  const Hosts &hosts_;
  const uint64_t chunk_;
};

}  // namespace

void plan_hosts_broadcast(Builder &b) {
  b.choose_island_chunk();
  HostBroadcast(b).plan();
}

void plan_hosts_all_gather(Builder &b) {
  const BlocksOfHosts blocks(b);
  b.choose_island_chunk({blocks.regions, 1});
  HostAllGather all_gather(b, blocks);
  b.library ? all_gather.plan_served() : all_gather.plan_unserved();
}

}  // namespace isthmus::plan
