// connect(): the process with the smaller id dials, and the other waits for the dialer.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <exception>

#include "base/lock.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "bootstrap/streams_over.hpp"
#include "net/shortage.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kProbeNs = 500'000'000;  // how often the waiting side looks whether the dialer is still there

Deadline next_look(Deadline deadline) { return Deadline::at_ns(std::min(deadline.ns(), now_ns() + kLookNs)); }

// Where this process has no descriptors left, nobody whom it waits for can come.
void check_descriptors(const Endpoint &awaited) {
  if (const std::string shortage = net::lasting_shortage(); !shortage.empty())
    fail(Code::Resource, "this process is {}, and cannot take the connections of {}: raise that limit", shortage,
         process_text(awaited));
}

// Those that came before the peer's greeting, when its token was not known; and those of an attempt that the peer has given up.
void drop_useless(const Peer &peer, DataArrivals &arrivals) {
  for (size_t i = 0; i < arrivals.fds.size(); ++i) {
    UniqueFd &fd = arrivals.fds[i];
    if (fd && arrivals.tokens[i] != peer.token) {
      fd.reset();
      refuse_stranger();
    } else if (pollfd one{fd.get(), POLLRDHUP, 0}; fd && ::poll(&one, 1, 0) > 0) {
      fd.reset();
    }
  }
}

void note_round_trip(Peer &peer) noexcept {
  int64_t least = 0;
  for (const UniqueFd &fd : peer.data)
    if (const int64_t its = net::least_round_trip_ns(fd.get()); its > 0 && (least == 0 || its < least)) least = its;
  peer.round_trip_ns.store(least, std::memory_order_relaxed);
}

// Where the peer listens, of the addresses by which its data streams reach this process.
void note_reached(const Peer &peer, Absence &absence) {
  for (const UniqueFd &fd : peer.data) try {
      const net::Address other = net::remote_address(fd.get());
      for (const net::Address &listens : addresses_of(peer.endpoint))
        if (listens.same_host(other)) absence.add(listens);
    } catch (const Error &) {  // the connection has ended already
    }
}

DataPlan data_plan(StreamCount asked, int64_t round_trip_ns) {
  const bool by_distance = asked.count == kStreamsByDistance, long_way = round_trip_ns >= kLongWayNs;
  if (by_distance) asked.count = std::max(asked.least, long_way ? streams_over(round_trip_ns, net::most_under_way()) : 1);
  return {asked.count, !by_distance, long_way};
}

// The data connections to a peer. What it returns ends the caller, and all of them are there: the peer has them as well, so they are kept for whoever
// connects next. Throws where some are not.
std::exception_ptr dial_data(const Dialer &dialer, const Peer &peer, const Bytes16 &key, const DataPlan &plan,
                             Deadline deadline, const Look &look, std::vector<DialedStream> &out) {
  try {
    dialer.data(peer, key, plan, deadline, look, out);
    return nullptr;
  } catch (...) {
    const auto made = [](const DialedStream &one) { return static_cast<bool>(one.fd); };
    if (out.empty() || !std::all_of(out.begin(), out.end(), made)) throw;
    return std::current_exception();
  }
}

}  // namespace

Peer *Mesh::State::claim(Arrival &&a) {
  auto peer = std::make_unique<Peer>();
  peer->endpoint = std::move(a.endpoint);
  peer->token = a.token;
  peer->index = static_cast<uint32_t>(peers.size());
  peer->last_heard_ns.store(now_ns(), std::memory_order_relaxed);
  peer->state_ = std::make_shared<Peer::State>();
  Peer::State &p = *peer->state_;
  const Lock lock(p.mutex);
  p.reader = std::move(a.reader);
  if (net::Credentials c; a.local && net::peer_credentials(a.fd.get(), c)) peer->pid = c.pid;
  if (a.local) p.pidfd = net::GuardedFd(net::peer_pidfd(a.fd.get()));
  if (!a.local) limit_unanswered(a.fd.get(), kHeldBeats * heartbeat_ns);
  p.movable = !a.local && self.tcp.size() > 1 && peer->endpoint.tcp.size() > 1;
  p.control = std::move(a.fd);
  Peer *raw = peer.get();
  peers.push_back({std::move(peer), std::move(a.arena)});
  by_process[raw->endpoint.process] = raw;
  if (p.pidfd && raw->pid > 0) end_earlier(*raw);
  fresh.push_back(raw);
  watch(epoll.get(), EPOLL_CTL_ADD, p.control.get(), EPOLLIN, tagged(Tag::Control, raw->index));
  if (p.pidfd) watch(epoll.get(), EPOLL_CTL_ADD, p.pidfd.get(), EPOLLIN, tagged(Tag::Pid, raw->index));
  wake();
  return raw;
}

// A process uses one mesh at a time. What it was before does nothing any more.
void Mesh::State::end_earlier(const Peer &peer) {
  for (Known &known : peers) {
    Peer &other = *known.peer;
    if (&other == &peer || other.pid != peer.pid) continue;
    Peer::State &p = *other.state_;
    const Lock lock(p.mutex);
    if (!other.lost.load(std::memory_order_acquire) || !p.pidfd) continue;
    p.surely.store(true);
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, p.pidfd.get(), nullptr);
    p.pidfd.reset();
  }
}

Peer *Mesh::State::await_control(const Endpoint &e, Deadline deadline, const Look &look) {
  const auto here = [&]() ISTHMUS_REQUIRES(mutex) { return arrivals.contains(e.process); };
  int64_t probe = now_ns() + kProbeNs;
  while (!net::wait_ready(changed, mutex, next_look(deadline), here)) {
    if (deadline.passed())
      fail(Code::Timeout, "{} did not connect within {:g} s; it is stopped or very late, or a firewall stands between",
           process_text(e), deadline.seconds());
    bool absent = false;
    {
      const Unlocked outside(mutex);
      check_descriptors(e);
      if (look) look();
      if (now_ns() >= probe) {
        absent = dialer.gone(e);
        probe = now_ns() + kProbeNs;
      }
    }
    if (absent && !arrivals.contains(e.process))
      fail(Code::PeerLost, "{} is no longer there; {}", process_text(e), dialer.why_gone(e));
  }
  const auto at = arrivals.find(e.process);
  Arrival a = std::move(at->second);
  arrivals.erase(at);
  return claim(std::move(a));
}

std::vector<UniqueFd> Mesh::State::await_data(Peer &peer, int streams, Deadline deadline, const Look &look) {
  const Bytes16 &process = peer.endpoint.process;
  const bool as_dialed = streams == kStreamsByDistance;
  const auto complete = [&]() ISTHMUS_REQUIRES(mutex) {
    const auto at = data_arrivals.find(process);
    if (at != data_arrivals.end()) drop_useless(peer, at->second);
    return at != data_arrivals.end() && ((!as_dialed && at->second.count != static_cast<uint32_t>(streams)) ||
                                         std::all_of(at->second.fds.begin(), at->second.fds.end(),
                                                     [](const UniqueFd &fd) { return static_cast<bool>(fd); }));
  };
  const auto over = [&]() ISTHMUS_REQUIRES(mutex) { return complete() || peer.lost.load(std::memory_order_acquire); };
  while (!net::wait_ready(changed, mutex, next_look(deadline), over)) {
    if (deadline.passed())
      fail(Code::Timeout, "{} did not open its{} data streams within {:g} s; a firewall may stand between",
           process_text(peer.endpoint), as_dialed ? "" : formatted(" {}", streams), deadline.seconds());
    const Unlocked outside(mutex);
    check_descriptors(peer.endpoint);
    if (look) look();
  }
  if (!complete()) throw Error(Code::PeerLost, peer.lost_text());
  DataArrivals d = std::move(data_arrivals[process]);
  data_arrivals.erase(process);
  if (!as_dialed && d.count != static_cast<uint32_t>(streams))
    fail(Code::Mismatch,
         "{} opens {} data streams, this process expects {}; set ISTHMUS_TCP_STREAMS to one value everywhere",
         process_text(peer.endpoint), d.count, streams);
  return std::move(d.fds);
}

Peer &Mesh::connect(const Endpoint &endpoint, const Bytes16 &key, bool want_shared, StreamCount data_streams,
                    Deadline deadline, const Look &look) {
  if (!birth_.here())
    fail(Code::Forked,
         "connect: these connections belong to the parent process; a forked child makes communicators of its own");
  State &s = *state_;
  const Bytes16 process = endpoint.process;
  if (process == s.self.process) fail(Code::Argument, "a process cannot connect to itself");
  if (data_streams.count < kStreamsByDistance || std::max(data_streams.count, data_streams.least) > kMostStreams)
    fail(Code::Argument, "{} data streams; at most {}", data_streams.count, kMostStreams);

  const Lock lock(s.mutex);
  const auto free = [&]() ISTHMUS_REQUIRES(s.mutex) { return !s.connecting.contains(process); };
  while (!net::wait_ready(s.changed, s.mutex, next_look(deadline), free)) {
    if (deadline.passed()) fail(Code::Timeout, "{}: another thread is still connecting to it", process_text(endpoint));
    const Unlocked outside(s.mutex);
    if (look) look();
  }
  s.connecting.insert(process);
  struct Done {
    State &s;
    const Bytes16 &process;
    ~Done() {  // the lock is held here
      s.connecting.erase(process);
      s.changed.notify_all();
    }
  } done{s, process};
  const auto unlocked = [&s](auto work) ISTHMUS_REQUIRES(s.mutex) {
    const Unlocked outside(s.mutex);
    return work();
  };

  const auto known = s.by_process.find(process);
  Peer *peer = known == s.by_process.end() ? nullptr : known->second;
  const bool dials = s.self.process < process;
  if (!peer)
    peer = dials ? s.claim(unlocked([&] { return s.dialer.control(endpoint, key, deadline, look); }))
                 : s.await_control(endpoint, deadline, look);
  Known &entry = s.peers[peer->index];
  if (peer->lost.load(std::memory_order_acquire)) throw Error(Code::PeerLost, peer->lost_text());

  if (want_shared && !peer->arena) {
    if (entry.shared.mapping) peer->arena = std::move(entry.shared.mapping);
    else if (endpoint.host == s.self.host && !std::exchange(entry.unshared_logged, true))
      ISTHMUS_WARN("no shared memory with {}, which is on this host: {}; TCP is used instead", process_text(endpoint),
                   entry.shared.why);
  }
  if (data_streams.count != 0 && !entry.has_data) {
    std::exception_ptr ended;
    if (dials) {
      const auto round_trip_ns = [&] {  // over the way that the control connection goes
        Peer::State &p = *peer->state_;
        const Lock its(p.mutex);
        return p.control ? net::least_round_trip_ns(p.control.get()) : 0;
      };
      const DataPlan plan = data_plan(data_streams, round_trip_ns());
      std::vector<DialedStream> dialed;
      ended = unlocked([&] { return dial_data(s.dialer, *peer, key, plan, deadline, look, dialed); });
      for (auto &[fd, address] : dialed) peer->data.push_back(std::move(fd)), entry.ways.push_back(address);
    } else {
      peer->data = s.await_data(*peer, data_streams.count, deadline, look);
    }
    entry.has_data = true;
    note_reached(*peer, entry.absence);
    note_round_trip(*peer);
    if (ended) std::rethrow_exception(ended);
  }
  return *peer;
}

bool Mesh::must_dial(const Endpoint &endpoint, bool data) const {
  State &s = *state_;
  if (s.self.process >= endpoint.process) return false;
  const Lock lock(s.mutex);
  const auto known = s.by_process.find(endpoint.process);
  return known == s.by_process.end() || (data && !s.peers[known->second->index].has_data);
}

bool Mesh::has_heard(int64_t until_ns) const noexcept {
  if (state_->losses.heard_ns.load(std::memory_order_acquire) >= until_ns) return true;
  if (now_ns() >= until_ns) state_->wake();
  return false;
}

bool Mesh::dials(const Peer &peer) const noexcept { return state_->self.process < peer.endpoint.process; }

UniqueFd Mesh::connect_again(Peer &peer, const Bytes16 &key, uint32_t stream, uint32_t generation, Deadline deadline) {
  State &s = *state_;
  StreamNumber number{stream, 0, generation};
  net::Address way;
  {
    const Lock lock(s.mutex);
    const Known &entry = s.peers[peer.index];
    number.count = static_cast<uint32_t>(entry.ways.size());
    if (stream >= number.count) fail(Code::Argument, "no data stream {} of {}", stream, number.count);
    way = entry.ways[stream];
  }
  DialedStream made;
  std::string why;
  if (!s.dialer.stream(peer, key, {way}, number, deadline, made, why)) fail(Code::PeerLost, "{}", why);
  return std::move(made.fd);
}

}  // namespace isthmus::bootstrap
