// connect(): the smaller process id dials, the other waits for it.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "base/lock.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr double kAttemptSeconds = 10;     // one dialogue with a process that accepted the connection
constexpr int64_t kProbeNs = 500'000'000;  // how often the waiting side looks whether the dialer is still there
constexpr int64_t kGoneLocalNs = 250'000'000, kGoneNs = 1'000'000'000;  // refused for so long: nobody is there any more
constexpr int64_t kKeyGraceNs = 5'000'000'000;                          // a peer may learn the key a little later than we do

Deadline at_most(Deadline deadline, double seconds) {
  return Deadline::at_ns(std::min(deadline.ns(), Deadline(seconds).ns()));
}

}  // namespace

Peer *Mesh::State::claim(Arrival &&a) {
  auto peer = std::make_unique<Peer>();
  peer->endpoint = std::move(a.endpoint);
  peer->index = static_cast<uint32_t>(peers.size());
  peer->last_heard_ns.store(now_ns(), std::memory_order_relaxed);
  peer->state_ = std::make_shared<Peer::State>();
  Peer::State &p = *peer->state_;
  const Lock lock(p.mutex);
  p.reader = std::move(a.reader);
  if (a.local) p.pidfd = net::GuardedFd(net::peer_pidfd(a.fd.get()));
  // Heartbeats are always on their way, so this tells of a host that has vanished.
  if (!a.local) net::limit_unacknowledged(a.fd.get(), static_cast<int>(std::min<int64_t>(heartbeat_ns / 10'000, INT_MAX)));
  p.control = std::move(a.fd);
  Peer *raw = peer.get();
  peers.push_back({std::move(peer), std::move(a.arena)});
  by_process[raw->endpoint.process] = raw;
  fresh.push_back(raw);
  watch(epoll.get(), EPOLL_CTL_ADD, p.control.get(), EPOLLIN, tagged(Tag::Control, raw->index));
  if (p.pidfd) watch(epoll.get(), EPOLL_CTL_ADD, p.pidfd.get(), EPOLLIN, tagged(Tag::Pid, raw->index));
  wake();
  return raw;
}

bool Mesh::State::gone(const Endpoint &e) const {
  UniqueFd fd;
  const bool local = e.host == self.host;
  if (local && net::connect_unix(e.unix_name, Deadline(0.1), fd) != ECONNREFUSED) return false;
  for (const std::string &text : e.tcp)
    if (net::connect_tcp(net::numeric_address(text), Deadline(0.1), fd) != ECONNREFUSED) return false;
  return local || !e.tcp.empty();
}

Arrival Mesh::State::dial_control(const Endpoint &e, const Bytes16 &key, Deadline deadline) {
  const bool local = e.host == self.host;
  int64_t refused_since = 0, key_since = 0;
  std::string last = "no attempt was made", unshared = "it is on another host";
  for (int64_t pause = 2'000'000;; pause = std::min<int64_t>(pause * 2, 100'000'000)) {
    bool refused = false, absent = false;  // absent: it has no socket here
    try {
      UniqueFd fd;
      const int error = local ? net::connect_unix(e.unix_name, deadline, fd) : EAFNOSUPPORT;
      net::Credentials c;
      if (error == 0 && net::peer_credentials(fd.get(), c) && c.uid == ::geteuid())
        return dial_local(e, key, std::move(fd), at_most(deadline, kAttemptSeconds));
      if (error == 0) unshared = formatted("it belongs to user {}, we to user {}", c.uid, ::geteuid());
      // Two hosts may have one identity (a virtual machine and its copy): where its socket is not here, it may still answer elsewhere.
      else if ((absent = error == ECONNREFUSED)) unshared = "its socket is not on this host, whatever it says of itself";
      else if (local) unshared = system_text("Unix socket", error);
      last = unshared;
      size_t refusals = 0;
      for (const std::string &text : e.tcp) {
        const int tcp_error = net::connect_tcp(net::numeric_address(text), at_most(deadline, kConnectSeconds), fd);
        if (tcp_error != 0) {
          last = system_text(text.c_str(), tcp_error);
          refusals += tcp_error == ECONNREFUSED ? 1 : 0;
          continue;
        }
        net::Hello hello;
        hello.process = self.process;
        const Deadline attempt = at_most(deadline, kAttemptSeconds);
        if (net::dial(fd.get(), hello, key, process_text(e), attempt).process != e.process)
          fail(Code::PeerLost, "another process answers at {}", text);
        net::ByteVector message;
        net::append_frame(message, static_cast<uint16_t>(Own::Intro), encode(Intro{0, self}));
        if (net::send_all(fd.get(), message, attempt) != net::Io::Ok) fail(Code::PeerLost, "{} closed the connection", text);
        PeerArena none;
        none.why = unshared;
        return {std::move(fd), e, false, std::move(none), net::FrameReader()};
      }
      refused = refusals == e.tcp.size();
    } catch (const Error &error) {
      refused = absent && error.code() == Code::PeerLost;  // somebody else has its port
      // a refused key explains more than the end of time
      if (key_since == 0 || error.code() != Code::Timeout) last = error.text();
      if (error.code() == Code::Auth) {
        if (key_since == 0) key_since = now_ns();
        if (now_ns() - key_since > kKeyGraceNs) throw;
        if (deadline.passed()) throw;
      } else if (error.code() != Code::PeerLost && error.code() != Code::Timeout) {
        throw;
      }
    }
    if (!refused) refused_since = 0;
    else if (refused_since == 0) refused_since = now_ns();
    else if (now_ns() - refused_since > (local ? kGoneLocalNs : kGoneNs))
      fail(Code::PeerLost, "{} is no longer there ({}); it has probably ended", process_text(e), last);
    if (deadline.passed()) {
      const std::string text =
          formatted("could not connect to {} within {:g} s: {}", process_text(e), deadline.seconds(), last);
      throw Error(key_since != 0 ? Code::Auth : Code::Timeout, text);
    }
    net::sleep_until(Deadline::at_ns(std::min(deadline.ns(), now_ns() + pause)));
  }
}

Peer *Mesh::State::await_control(const Endpoint &e, Deadline deadline) {
  const auto here = [&]() ISTHMUS_REQUIRES(mutex) { return arrivals.contains(e.process); };
  while (!net::wait_ready(changed, mutex, Deadline::at_ns(std::min(deadline.ns(), now_ns() + kProbeNs)), here)) {
    if (deadline.passed())
      fail(Code::Timeout, "{} did not connect within {:g} s; it is stopped or very late, or a firewall stands between",
           process_text(e), deadline.seconds());
    bool absent = false;
    {
      const Unlocked outside(mutex);
      absent = gone(e);
    }
    if (absent && !arrivals.contains(e.process))
      fail(Code::PeerLost, "{} is no longer there; it has probably ended", process_text(e));
  }
  const auto at = arrivals.find(e.process);
  Arrival a = std::move(at->second);
  arrivals.erase(at);
  return claim(std::move(a));
}

std::vector<UniqueFd> Mesh::State::dial_data(Peer &peer, const Bytes16 &key, int streams, Deadline deadline) {
  const Endpoint &e = peer.endpoint;
  std::vector<UniqueFd> out;
  std::string last;
  while (out.size() < static_cast<size_t>(streams)) {
    UniqueFd fd;
    for (const std::string &text : e.tcp) {
      const int error = net::connect_tcp(net::numeric_address(text), at_most(deadline, kConnectSeconds), fd);
      if (error == 0) break;
      last = system_text(text.c_str(), error);
    }
    try {
      if (fd) {
        net::Hello hello;
        hello.process = self.process;
        hello.role = net::Role::Data;
        hello.index = static_cast<uint32_t>(out.size());
        hello.count = static_cast<uint32_t>(streams);
        const Deadline attempt = at_most(deadline, kAttemptSeconds);
        if (net::dial(fd.get(), hello, key, process_text(e), attempt).process != e.process)
          fail(Code::PeerLost, "another process answers for {}", process_text(e));
        net::ByteVector ready;
        net::append_frame(ready, static_cast<uint16_t>(Own::Ready), {});
        if (net::send_all(fd.get(), ready, attempt) != net::Io::Ok)
          fail(Code::PeerLost, "{} closed the connection", process_text(e));
        out.push_back(std::move(fd));
        continue;
      }
    } catch (const Error &error) {
      if (error.code() != Code::PeerLost && error.code() != Code::Timeout) throw;
      last = error.text();
    }
    if (peer.lost.load(std::memory_order_acquire)) throw Error(Code::PeerLost, peer.lost_text());
    if (deadline.passed())
      fail(Code::Timeout, "could not open data stream {} of {} to {} within {:g} s: {}", out.size(), streams,
           process_text(e), deadline.seconds(), last);
    net::sleep_until(Deadline::at_ns(std::min(deadline.ns(), now_ns() + 20'000'000)));
  }
  return out;
}

std::vector<UniqueFd> Mesh::State::await_data(Peer &peer, int streams, Deadline deadline) {
  const Bytes16 &process = peer.endpoint.process;
  const auto complete = [&]() ISTHMUS_REQUIRES(mutex) {
    const auto at = data_arrivals.find(process);
    return at != data_arrivals.end() && (at->second.count != static_cast<uint32_t>(streams) ||
                                         std::all_of(at->second.fds.begin(), at->second.fds.end(),
                                                     [](const UniqueFd &fd) { return static_cast<bool>(fd); }));
  };
  const bool ready = net::wait_ready(changed, mutex, deadline, [&]() ISTHMUS_REQUIRES(mutex) {
    return complete() || peer.lost.load(std::memory_order_acquire);
  });
  if (!ready)
    fail(Code::Timeout, "{} did not open its {} data streams within {:g} s; a firewall may stand between",
         process_text(peer.endpoint), streams, deadline.seconds());
  if (!complete()) throw Error(Code::PeerLost, peer.lost_text());
  DataArrivals d = std::move(data_arrivals[process]);
  data_arrivals.erase(process);
  if (d.count != static_cast<uint32_t>(streams))
    fail(Code::Mismatch,
         "{} opens {} data streams, this process expects {}; set ISTHMUS_TCP_STREAMS to one value everywhere",
         process_text(peer.endpoint), d.count, streams);
  return std::move(d.fds);
}

Peer &Mesh::connect(const Endpoint &endpoint, const Bytes16 &key, bool want_shared, int data_streams, Deadline deadline) {
  if (!birth_.here())
    fail(Code::Forked,
         "connect: these connections belong to the parent process; a forked child makes communicators of its own");
  State &s = *state_;
  const Bytes16 process = endpoint.process;
  if (process == s.self.process) fail(Code::Argument, "a process cannot connect to itself");
  if (data_streams < 0 || data_streams > 64) fail(Code::Argument, "{} data streams; at most 64", data_streams);

  const Lock lock(s.mutex);
  if (!net::wait_ready(s.changed, s.mutex, deadline,
                       [&]() ISTHMUS_REQUIRES(s.mutex) { return !s.connecting.contains(process); }))
    fail(Code::Timeout, "{}: another thread is still connecting to it", process_text(endpoint));
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
    peer = dials ? s.claim(unlocked([&] { return s.dial_control(endpoint, key, deadline); }))
                 : s.await_control(endpoint, deadline);
  Known &entry = s.peers[peer->index];
  if (peer->lost.load(std::memory_order_acquire)) throw Error(Code::PeerLost, peer->lost_text());

  if (want_shared && !peer->arena) {
    if (entry.shared.mapping) peer->arena = std::move(entry.shared.mapping);
    else if (endpoint.host == s.self.host && !std::exchange(entry.unshared_logged, true))
      ISTHMUS_WARN("no shared memory with {}, which is on this host: {}; TCP is used instead", process_text(endpoint),
                   entry.shared.why);
  }
  if (data_streams > 0 && !entry.has_data) {
    peer->data = dials ? unlocked([&] { return s.dial_data(*peer, key, data_streams, deadline); })
                       : s.await_data(*peer, data_streams, deadline);
    entry.has_data = true;
  }
  return *peer;
}

}  // namespace isthmus::bootstrap
