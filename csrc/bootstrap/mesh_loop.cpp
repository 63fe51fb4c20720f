// The control thread: one epoll loop for listeners, greetings, control connections, pidfds and heartbeats.
#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/lock.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kFarewellNs = 250'000'000;  // for messages that are still queued when the mesh is destroyed
constexpr size_t kReadsAtOnce = 64;           // of one peer, before the others have their turn
constexpr const char *kUnreachable = "is unreachable: its control connection failed";

}  // namespace

void Mesh::State::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-control");
  std::vector<net::Guest> guests;
  std::vector<Peer *> claimed;
  int64_t tick = now_ns() + heartbeat_ns;
  while (!stop.load(std::memory_order_acquire)) {
    try {
      int64_t until = std::min(tick, gate.next_deadline_ns());
      for (const auto &[number, g] : greetings) until = std::min(until, g.deadline.ns());
      epoll_event ready[64];
      const int n = ::epoll_wait(epoll.get(), ready, 64, Deadline::at_ns(until).left_ms());
      for (int i = 0; i < n; ++i) {
        const uint64_t number = ready[i].data.u64 & 0xffffffffffffff;
        switch (static_cast<Tag>(ready[i].data.u64 >> 56)) {
          case Tag::Wake: {
            uint64_t count;
            [[maybe_unused]] const ssize_t got = ::read(wake_fd.get(), &count, sizeof count);
            break;
          }
          case Tag::Gate: break;  // served below, as its deadlines are
          case Tag::Greeting: {
            const auto at = greetings.find(number);
            if (at != greetings.end() && !advance(at->second)) greetings.erase(at);
            break;
          }
          case Tag::Control: {
            Peer &peer = *find(static_cast<uint32_t>(number));
            if (ready[i].events & EPOLLOUT) on_writable(peer);
            if (ready[i].events & ~uint32_t{EPOLLOUT}) on_readable(peer);
            break;
          }
          case Tag::Pid: on_ended(*find(static_cast<uint32_t>(number))); break;
        }
      }
      gate.service(guests);
      for (net::Guest &g : guests) admit(std::move(g));
      guests.clear();
      for (auto at = greetings.begin(); at != greetings.end();) {
        const bool late = at->second.deadline.passed();
        if (late) refuse(at->second, "it did not finish its greeting in time");
        at = late ? greetings.erase(at) : std::next(at);
      }
      greeting_count.store(static_cast<int>(greetings.size()), std::memory_order_relaxed);
      {
        const Lock lock(mutex);
        claimed.swap(fresh);
      }
      for (Peer *peer : claimed) on_readable(*peer);
      claimed.clear();
      if (now_ns() >= tick) {
        beat();
        tick = now_ns() + heartbeat_ns;
      }
    } catch (const std::exception &e) {  // out of memory or descriptors: the mesh goes on
      ISTHMUS_ERROR("control thread: {}", e.what());
      guests.clear();
      claimed.clear();
      static_cast<void>(::poll(nullptr, 0, 10));  // whatever fails may fail again at once
    }
  }
  farewell();
}

void Mesh::State::queue(Peer::State &p, uint32_t index, uint16_t type, std::span<const std::byte> body) {
  const bool idle = p.sent == p.out.size();
  if (idle) {
    p.out.clear();
    p.sent = 0;
  }
  net::append_frame(p.out, type, body);
  if (!idle) return;
  flush(p);
  if (p.sent < p.out.size())
    watch(epoll.get(), EPOLL_CTL_MOD, p.control.get(), EPOLLIN | EPOLLOUT, tagged(Tag::Control, index));
}

void Mesh::State::flush(Peer::State &p) {
  while (p.sent < p.out.size()) {
    const ssize_t n = net::send_some(p.control.get(), std::span<const std::byte>(p.out).subspan(p.sent));
    if (n < 0) {  // reading tells that it is broken
      p.send_error = errno;
      p.sent = p.out.size();
    }
    if (n <= 0) break;
    p.sent += static_cast<size_t>(n);
  }
  if (p.sent > 1024 * 1024) {
    p.out.erase(p.out.begin(), p.out.begin() + static_cast<ptrdiff_t>(p.sent));
    p.sent = 0;
  }
}

void Mesh::State::on_writable(Peer &peer) {
  Peer::State &p = *peer.state_;
  const Lock lock(p.mutex);
  if (!p.control) return;
  flush(p);
  if (p.sent == p.out.size()) {
    p.out = {};
    p.sent = 0;
    watch(epoll.get(), EPOLL_CTL_MOD, p.control.get(), EPOLLIN, tagged(Tag::Control, peer.index));
  }
}

void Mesh::State::on_readable(Peer &peer) {
  if (peer.lost.load(std::memory_order_relaxed)) return;
  Peer::State &p = *peer.state_;
  int fd = -1;  // this thread alone closes it
  bool watched = false;
  {
    const Lock lock(p.mutex);
    fd = p.control.get();
    watched = static_cast<bool>(p.pidfd);
  }
  std::string end;
  const auto error_of_sending = [&p] {  // 0: there was none, or only that the peer had closed the connection
    const Lock lock(p.mutex);
    return p.send_error == EPIPE || p.send_error == ECONNRESET ? 0 : p.send_error;
  };
  // A peer that has ended says no more, so all that it said is heard before it is lost.
  for (size_t reads = 0; end.empty() && (reads < kReadsAtOnce || p.ended); ++reads) {
    uint16_t type = 0;
    std::span<const std::byte> body;
    net::FrameReader::Result r;
    while ((r = p.reader.next(type, body)) == net::FrameReader::Result::Frame) {
      if (type < kFirstOwnType) events.on_message(peer, type, body);
      else if (type == static_cast<uint16_t>(Own::Bye)) p.bye = true;
      else if (type != static_cast<uint16_t>(Own::Heartbeat)) end = formatted("sent an unknown message (type {})", type);
    }
    if (r == net::FrameReader::Result::Bad) end = "sent " + p.reader.why();
    if (!end.empty()) break;
    const ssize_t n = net::recv_some(fd, p.reader.space());
    if (n > 0) {
      p.reader.received(static_cast<size_t>(n));
      peer.last_heard_ns.store(now_ns(), std::memory_order_relaxed);
    } else if (n == 0 || errno == ECONNRESET || errno == EPIPE) {
      // A socket tells its error once, and whoever sent may have been told: then reading finds an end and nothing else.
      const int sending = error_of_sending();
      end = p.bye     ? "shut Isthmus down"
            : sending ? system_text(kUnreachable, sending)
            : p.ended ? "ended"
            : watched ? "ended, or closed its control connection"
                      : "closed its control connection; it has probably ended";
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else {
      end = system_text(kUnreachable, errno);
    }
  }
  if (!end.empty()) lose(peer, formatted("{} {}", process_text(peer.endpoint), end));
}

void Mesh::State::on_ended(Peer &peer) {
  if (peer.lost.load(std::memory_order_relaxed)) return;
  peer.state_->ended = true;
  on_readable(peer);
  lose(peer, formatted("{} {}", process_text(peer.endpoint), peer.state_->bye ? "shut Isthmus down" : "ended"));
}

void Mesh::State::lose(Peer &peer, const std::string &why) {
  if (peer.lost.load(std::memory_order_relaxed)) return;
  {
    Peer::State &p = *peer.state_;
    const Lock lock(p.mutex);
    p.why = why;
    peer.lost.store(true, std::memory_order_release);  // publishes `why`
    // Removed by hand: a copy of the descriptor in a process that is just being forked would keep the entry alive.
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, p.control.get(), nullptr);
    if (p.pidfd) ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, p.pidfd.get(), nullptr);
    p.control.reset();
    p.pidfd.reset();
    p.out = {};
    p.sent = 0;
  }
  {
    const Lock lock(mutex);  // a waiter between its test and its sleep holds it
  }
  changed.notify_all();
  if (peer.state_->bye) ISTHMUS_INFO("{} has ended its use of Isthmus", process_text(peer.endpoint));
  else ISTHMUS_INFO("lost {}", why);
  events.on_lost(peer, why);
}

void Mesh::State::beat() {
  for (uint32_t i = 0; Peer *peer = find(i); ++i) {
    Peer::State &p = *peer->state_;
    const Lock lock(p.mutex);
    if (p.control && p.sent == p.out.size()) queue(p, i, static_cast<uint16_t>(Own::Heartbeat), {});
  }
  events.on_tick();
}

void Mesh::State::farewell() noexcept {
  try {
    const Deadline deadline = Deadline::at_ns(now_ns() + kFarewellNs);
    std::vector<pollfd> waiting;
    for (bool first = true; first || (!waiting.empty() && !deadline.passed()); first = false) {
      if (!first) static_cast<void>(::poll(waiting.data(), waiting.size(), deadline.left_ms()));
      waiting.clear();
      for (uint32_t i = 0; Peer *peer = find(i); ++i) {
        Peer::State &p = *peer->state_;
        const Lock lock(p.mutex);
        if (!p.control) continue;
        if (first) net::append_frame(p.out, static_cast<uint16_t>(Own::Bye), {});
        flush(p);
        if (p.sent < p.out.size()) waiting.push_back({p.control.get(), POLLOUT, 0});
      }
    }
    // A TCP socket that is closed with unread bytes resets the connection, and the peer may lose what we said last.
    std::array<std::byte, 4096> rest;
    for (uint32_t i = 0; Peer *peer = find(i); ++i) {
      const Lock lock(peer->state_->mutex);
      const int fd = peer->state_->control.get();
      for (int reads = 0; fd >= 0 && reads < 256 && net::recv_some(fd, rest) > 0;) ++reads;
    }
  } catch (...) {  // out of memory: the peers see the closed connections
  }
}

}  // namespace isthmus::bootstrap
