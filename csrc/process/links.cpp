#include "process/links.hpp"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.hpp"
#include "bootstrap/streams_over.hpp"
#include "link/tcp.hpp"

namespace isthmus::process {
namespace {

// How long a broken data link waits for the control connection to say why. A peer that leaves, aborts or dies says so on the control connection. Of
// that, all counts that has come within this time, also where the control thread reads it later.
constexpr int64_t kLinkGraceNs = 500'000'000;

constexpr int64_t kLeastSpinNs = 4000;  // before a sleep that sockets end

// Of this thread: with what came it goes on (Links::Driving), and whether something came for others in the drive() that runs.
thread_local const LocalRank *driven_here = nullptr;
thread_local bool drives_all = false, came_for_others = false;
const InChild forgets_driven([](void *) noexcept {
  driven_here = nullptr;
  drives_all = false;
});

void note_for_others(const LocalRank &rank) noexcept {
  if (drives_all ? rank.waiters() != 0 : driven_here != &rank) came_for_others = true;
}

// All rings together leave most of the staging memory to slots.
StreamRingBody make_ring(link::Arena &arena) {
  for (uint64_t capacity = link::ByteRing::kMostCapacity;; capacity /= 2) {
    const bool least = capacity == link::ByteRing::kLeastCapacity;
    if (!least && arena.staging_used() + capacity > arena.staging_limit() / 8) continue;
    try {
      const uint64_t offset = arena.allocate_staging(link::ByteRing::bytes(capacity));
      new (arena.base() + offset) link::ByteRing;
      return {offset, capacity};
    } catch (const Error &) {
      if (least) throw;
    }
  }
}

}  // namespace

Links::Links(link::Arena &arena, const RankTable &ranks, DataStreams &streams, link::Hands &hands, Stores stores,
             int64_t spin_ns)
    : arena_(arena),
      ranks_(ranks),
      data_streams_(streams),
      hands_(hands),
      stores_(stores),
      watch_(arena.doorbell()),
      spin_ns_(spin_ns),
      socket_spin_ns_(spin_ns) {}

// ---- making links --------------------------------------------------------------------------------------------------------------------

bootstrap::Peer &Links::connect(const bootstrap::Endpoint &endpoint, const bootstrap::Bytes16 &key, bool shared,
                                const Streams *streams, Deadline deadline, const bootstrap::Look &look) {
  bootstrap::Peer &peer = mesh_->connect(endpoint, key, shared, 0, deadline, look);
  if (!streams) return peer;
  const std::shared_ptr<const void> hold = peer.take_hold();  // nobody lets go of it meanwhile
  if (peer.lost.load(std::memory_order_acquire)) fail(Code::PeerLost, "{}", peer.lost_text());
  {
    const Lock lock(mutex_);
    if (find(&peer, streams->carrier)) {  // its streams belong to a link already
      data_streams_.use_key(peer, key);
      return peer;
    }
  }
  if (streams->carrier == Carrier::Ucx) {
    make_ucx_link(peer, streams->address);
  } else {
    bootstrap::StreamCount count = streams->count;
    if (count.count == 0) count = mesh_->self().ways_to(endpoint);
    mesh_->connect(endpoint, key, shared, count, deadline, look);
    link_to(&peer, Carrier::Tcp);
    data_streams_.use_key(peer, key);
  }
  return peer;
}

std::vector<std::byte> Links::ucx_address() {
  const Lock lock(ucx_mutex_);
  if (!ucx_) ucx_ = std::make_unique<link::UcxWorker>();
  return ucx_->address();
}

void Links::make_ucx_link(bootstrap::Peer &peer, std::span<const std::byte> address) {
  const Lock one(ucx_mutex_);
  {
    const Lock lock(mutex_);
    if (find(&peer, Carrier::Ucx)) return;
  }
  uint64_t bytes = link::UcxLink::kMostMemory;
  while (bytes > link::UcxLink::kLeastMemory && arena_.staging_used() + bytes > arena_.staging_limit() / 8) bytes /= 2;
  const uint64_t offset = arena_.allocate_staging(bytes, link::Fill::AnyBytes);
  auto slot = std::make_unique<LinkSlot>(*this);
  try {
    slot->peer = &peer;
    auto made = std::make_unique<link::UcxLink>(
        *ucx_, address, link::UcxPair{std::span(mesh_->self().process), std::span(peer.endpoint.process)},
        std::span(arena_.base() + offset, bytes));
    slot->ucx = made.get();
    slot->link = std::move(made);
  } catch (...) {
    arena_.free_staging(offset);
    throw;
  }
  slot->sockets = true;
  has_sockets_.store(true, std::memory_order_release);
  need_driving_.store(true, std::memory_order_release);
  const Lock lock(mutex_);
  add(std::move(slot));
}

void Links::await_ucx(bootstrap::Peer &peer, Deadline deadline, const bootstrap::Look &look) {
  constexpr int64_t kLookNs = 20'000'000;
  LinkSlot *slot;
  {
    const Lock lock(mutex_);
    slot = find(&peer, Carrier::Ucx);
  }
  if (!slot) return;
  for (int64_t looked = now_ns();;) {
    if (look && now_ns() - looked > kLookNs) {
      look();
      looked = now_ns();
    }
    if (peer.lost.load(std::memory_order_acquire)) fail(Code::PeerLost, "it is gone: {}", peer.lost_text());
    if (slot->broken_ns.load(std::memory_order_acquire) != 0)
      fail(Code::PeerLost, "the connection by UCX breaks: {}; UCX_LOG_LEVEL=info makes UCX say more", slot->reason);
    if (slot->ucx->ready()) return;
    if (deadline.passed())
      fail(Code::Timeout,
           "UCX has not reached it in time; UCX_TLS and UCX_NET_DEVICES must leave both a way to the other, and "
           "UCX_LOG_LEVEL=info makes UCX say more");
    if (!slot->drive()) ::usleep(50);
  }
}

void Links::make_memory_link(LinkSlot &slot) {
  bootstrap::Peer *const peer = slot.peer;
  const StreamRingBody mine = make_ring(arena_);
  auto shm = std::make_unique<link::ShmLink>(link::ByteRing::at(arena_.base() + mine.offset), mine.capacity,
                                             &link::Arena::doorbell_of(peer->arena.data()), stores_);
  slot.shm = shm.get();
  slot.ring = mine.offset;
  slot.link = std::move(shm);
  for (const auto &[from, theirs] : early_rings_)
    if (from == peer) slot.shm->set_in(link::ByteRing::at(peer->arena.data() + theirs.offset), theirs.capacity);
  mesh_->send(*peer, static_cast<uint16_t>(Control::StreamRing), packed(mine));
}

Links::LinkSlot *Links::find(const bootstrap::Peer *peer, Carrier carrier) {
  for (auto &l : links_)
    if (l->peer == peer && (peer == nullptr || l->carrier() == carrier)) return l.get();
  return nullptr;
}

link::Link *Links::add(std::unique_ptr<LinkSlot> slot) {
  if (links_.size() >= link_table_.size()) fail(Code::Resource, "more than {} links in one process", link_table_.size());
  link::Link *made = slot->link.get();
  const uint32_t n = counts_.made.load(std::memory_order_relaxed);
  link_table_[n].store(slot.get(), std::memory_order_release);
  links_.push_back(std::move(slot));
  counts_.made.store(n + 1, std::memory_order_release);
  return made;
}

link::Link *Links::link_to(bootstrap::Peer *peer, Carrier carrier) {
  const Lock lock(mutex_);
  if (LinkSlot *known = find(peer, carrier)) return known->link.get();
  auto slot = std::make_unique<LinkSlot>(*this);
  slot->peer = peer;
  if (!peer) {
    slot->link = std::make_unique<link::LocalLink>(&arena_.doorbell());
  } else if (carrier == Carrier::Memory) {
    make_memory_link(*slot);
  } else if (carrier == Carrier::Tcp) {
    const int64_t round_trip_ns = peer->round_trip_ns.load(std::memory_order_relaxed);
    const int64_t long_way_ns = round_trip_ns >= bootstrap::kLongWayNs ? round_trip_ns : 0;
    auto tcp = std::make_unique<link::TcpLink>(std::move(peer->data), peer->endpoint.delay_us * int64_t{1000}, long_way_ns,
                                               &hands_);
    data_streams_.add(*peer, *tcp);
    if (tcp->news().streams() > 1) need_driving_.store(true, std::memory_order_release);
    slot->link = std::move(tcp);
    slot->sockets = true;
    has_sockets_.store(true, std::memory_order_release);
  } else {
    fail(Code::Internal, "no link by UCX to {}", peer->endpoint.hostname);
  }
  return add(std::move(slot));
}

void Links::ring_came(bootstrap::Peer &peer, const StreamRingBody &ring) {
  const Lock lock(mutex_);
  for (auto &l : links_)
    if (l->peer == &peer && l->shm) l->shm->set_in(link::ByteRing::at(peer.arena.data() + ring.offset), ring.capacity);
  early_rings_.emplace_back(&peer, ring);
}

bool Links::let_go(const bootstrap::Peer &peer) {
  if (!data_streams_.let_go(peer)) return false;
  const Lock lock(mutex_);
  std::erase_if(early_rings_, [&](const auto &early) { return early.first == &peer; });
  for (auto &l : links_) {
    if (l->peer != &peer || l->let_go) continue;
    if (l->ucx) return false;
    while (!l->link->try_turn()) ::sched_yield();  // a few bursts at most
    l->link->let_go();
    l->link->end_turn();
    if (l->shm) arena_.free_staging(l->ring);
    l->let_go = true;
    counts_.let_go.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

// ---- driving links -------------------------------------------------------------------------------------------------------------------

Links::Driving::Driving() noexcept : rank_(driven_here), all_(std::exchange(drives_all, true)) {}
Links::Driving::Driving(const LocalRank &rank) noexcept : rank_(std::exchange(driven_here, &rank)), all_(drives_all) {}
Links::Driving::~Driving() {
  driven_here = rank_;
  drives_all = all_;
}

bool Links::LinkSlot::drive() {
  if (!link->try_turn()) return false;
  bool moved = false;
  try {
    moved = link->progress(*this);
  } catch (const std::exception &e) {  // out of memory for data for which no thread has asked yet
    broken(e.what());
  }
  link->end_turn();
  return moved;
}

void Links::let_leave() noexcept {
  const Deadline most(kMostLeaveSeconds);
  const uint32_t n = counts_.made.load(std::memory_order_acquire);
  for (;;) {
    bool left = false, moved = false;
    for (uint32_t i = 0; i < n; ++i) left |= !link_table_[i].load(std::memory_order_acquire)->may_leave();
    if (!left || most.passed()) return;
    // Links that owe nothing are read, too: their other end may be ending as well, and wait for that.
    for (uint32_t i = 0; i < n; ++i) {
      LinkSlot &slot = *link_table_[i].load(std::memory_order_acquire);
      if (slot.carries()) moved |= slot.drive();
    }
    if (!moved) ::usleep(200);
  }
}

bool Links::LinkSlot::carries() const noexcept {
  return sockets && broken_ns.load(std::memory_order_acquire) == 0 && !peer->lost.load(std::memory_order_acquire);
}

bool Links::LinkSlot::may_leave() noexcept {
  constexpr int64_t kStillNs = 5'000'000'000;  // by then what was lost has been sent four times, over any way
  if (!carries()) return true;
  if (!link->try_turn()) return false;
  const link::Link::Left left = link->left();
  link->end_turn();
  if (!left.any) return true;
  const int64_t now = now_ns();
  if (leaving.since_ns == 0 || left.through != leaving.through) leaving = {now, left.through};
  return now - leaving.since_ns > kStillNs;
}

bool Links::drive(LookAt links) noexcept {
  bool moved = false;
  came_for_others = false;
  const uint32_t n = counts_.made.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    LinkSlot &slot = *link_table_[i].load(std::memory_order_acquire);
    if ((links == LookAt::AllLinks || !slot.sockets) && !slot.link->quiet()) moved |= slot.drive();
  }
  if (moved && (came_for_others || watch_.others_sleep())) arena_.doorbell().ring();
  return moved;
}

void Links::cancel(const LocalRank &rank) {
  for (int q = 0; q < rank.world(); ++q) {
    const PathTo path = rank.path_to(q);
    if (!path.link) continue;
    while (!path.link->try_turn()) ::sched_yield();  // a few bursts at most
    path.link->cancel(rank.index(), path.their_index, rank.epoch(), static_cast<uint32_t>(rank.rank()));
    path.link->end_turn();
  }
}

link::Accept Links::accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to) {
  const auto rank = ranks_.at(h.member);
  if (!rank) return link::Accept::Drop;
  if (link::is_bare(h.kind))
    note_for_others(*rank);  // what answers it may wait for its link's turn, which this thread need not take again
  return rank->accept_frame(h, since_ns, to);
}

void Links::received(const link::FrameHeader &h) {
  const auto rank = ranks_.at(h.member, h.epoch);
  if (!rank) return;
  rank->received_frame(h);
  if (h.kind == link::FrameKind::PlanData) note_for_others(*rank);  // a message wakes those who wait for it
}

void Links::LinkSlot::broken(const std::string &why) {
  if (!peer) return;
  reason = why;
  broken_ns.store(now_ns(), std::memory_order_release);
  all.has_broken_.store(true, std::memory_order_release);
}

void Links::report_broken() noexcept {
  if (!has_broken_.load(std::memory_order_acquire)) return;
  const uint32_t n = counts_.made.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    LinkSlot &slot = *link_table_[i].load(std::memory_order_acquire);
    const int64_t since = slot.broken_ns.load(std::memory_order_acquire);
    if (since == 0 || !mesh_->has_heard(since + kLinkGraceNs) || slot.peer->lost.load(std::memory_order_acquire)) continue;
    for (const auto &rank : ranks_.all()) rank->link_broken(slot.link.get(), slot.reason);
  }
}

// ---- sleeping ------------------------------------------------------------------------------------------------------------------------

void Links::note_socket_wait(int64_t ns) noexcept {
  const int64_t spin = socket_spin_ns_.load(std::memory_order_relaxed);
  if (ns > spin_ns_) socket_spin_ns_.store(std::max(spin / 2, std::min(spin_ns_, kLeastSpinNs)), std::memory_order_relaxed);
  else if (ns > spin) socket_spin_ns_.store(std::min(spin * 4, spin_ns_), std::memory_order_relaxed);
}

void Links::poll_sockets(int64_t ns, SleepEnds ends) {
  thread_local std::vector<pollfd> fds;
  fds.clear();
  fds.push_back({arena_.bell_socket().fd(), POLLIN, 0});
  const uint32_t n = counts_.made.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < n; ++i) {
    link::Link &link = *link_table_[i].load(std::memory_order_acquire)->link;
    if (link.try_turn()) {
      link.before_sleep();
      link.end_turn();
    }
    ns = std::min(ns, link.descriptors(fds));
  }
  if (ends == SleepEnds::Promptly)
    if (const int timer = timer_.arm(ns); timer >= 0) fds.push_back({timer, POLLIN, 0});
  const timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  if (::ppoll(fds.data(), fds.size(), &t, nullptr) > 0 && fds[0].revents != 0) arena_.bell_socket().answer();
}

}  // namespace isthmus::process
