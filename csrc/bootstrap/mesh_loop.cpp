// The control thread: one epoll loop for listeners, greetings, control connections, pidfds and heartbeats.
#include <pthread.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/lock.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kAlongNs = 250'000'000;  // longer than that no message waits for a heartbeat with which it goes along
constexpr size_t kReadsAtOnce = 64;        // reads of one peer before the others have their turn
constexpr const char *kUnreachable = "is unreachable: its control connection failed";

// Whether the process, whose connection has been closed, has ended.
bool ends_now(int pidfd, EndingWait &wait) {
  pollfd of{pidfd, POLLIN, 0};
  return ::poll(&of, 1, wait.left_ms(now_ns())) == 1;
}

// Nobody may ever connect() to a process that has come, for the making for which it came may have failed. Once its connection is closed it is to be a
// peer like others, which is lost, and is let go of with its memory. `busy`: connect() may be about to take it.
std::vector<Arrival> take_closed(std::map<Bytes16, Arrival> &arrivals, const std::set<Bytes16> &busy) {
  std::vector<Arrival> out;
  for (auto at = arrivals.begin(); at != arrivals.end();) {
    pollfd end{at->second.fd.get(), POLLRDHUP, 0};
    if (busy.contains(at->first) || ::poll(&end, 1, 0) != 1) {
      ++at;
      continue;
    }
    out.push_back(std::move(at->second));
    at = arrivals.erase(at);
  }
  return out;
}

}  // namespace

void Mesh::State::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-control");
  std::vector<net::Guest> guests;
  std::vector<Peer *> claimed;
  int64_t tick = now_ns() + heartbeat_ns;
  losses.silence.turn(now_ns());
  while (!stop.load(std::memory_order_acquire)) {
    try {
      const int64_t until =
          std::min({tick, losses.silence.next_ns(), gate.next_deadline_ns(), greetings->next_deadline_ns()});
      std::array<epoll_event, 64> ready;
      const size_t due = losses.ended.size();
      const int64_t begun = now_ns();
      losses.unread = false;
      const int n = ::epoll_wait(epoll.get(), ready.data(), ready.size(), due != 0 ? 0 : Deadline::at_ns(until).left_ms());
      losses.silence.turn(now_ns());
      for (int i = 0; i < n; ++i) serve(ready[static_cast<size_t>(i)]);
      gate.service(guests);
      for (net::Guest &g : guests) greetings->admit(std::move(g));
      guests.clear();
      greetings->expire();
      {
        const Lock lock(mutex);
        claimed.swap(fresh);
      }
      for (Peer *peer : claimed) {
        peer->state_->take_next(*peer, epoll.get(), heartbeat_ns);
        beat(*peer);  // so that the other side knows from now on that this one is heard
        on_readable(*peer);
      }
      claimed.clear();
      for (size_t i = 0; i < due; ++i) lose(*losses.ended[i].first, losses.ended[i].second);
      losses.ended.erase(losses.ended.begin(), losses.ended.begin() + static_cast<ptrdiff_t>(due));
      if (losses.ended.empty() && n >= 0 && n < static_cast<int>(ready.size()) && !losses.unread)
        losses.heard_ns.store(begun, std::memory_order_release);
      if (losses.silence.watched()) leave_out_the_silent();
      if (now_ns() >= tick) {
        for (uint32_t i = 0; Peer *peer = find(i); ++i) {
          give_up_unheard(*peer);
          beat(*peer);
        }
        {
          const Lock lock(mutex);
          for (Arrival &a : take_closed(arrivals, connecting)) claim(std::move(a));
        }
        events.on_tick();
        tick = now_ns() + heartbeat_ns;
      }
    } catch (const std::exception &e) {  // out of memory or descriptors; the mesh goes on
      ISTHMUS_ERROR("control thread: {}", e.what());
      guests.clear();
      claimed.clear();
      static_cast<void>(::poll(nullptr, 0, 10));  // what has failed may fail again at once
    }
  }
  farewell();
}

void Mesh::State::serve(const epoll_event &ready) {
  const uint64_t number = number_of(ready.data.u64);
  switch (tag_of(ready.data.u64)) {
    case Tag::Wake: {
      uint64_t count;
      [[maybe_unused]] const ssize_t got = ::read(wake_fd.get(), &count, sizeof count);
      break;
    }
    case Tag::Gate: break;  // run() serves the gate, because the gate has deadlines too
    case Tag::Greeting: greetings->on_readable(number); break;
    case Tag::Control: {
      Peer &peer = *find(static_cast<uint32_t>(number));
      if (ready.events & EPOLLOUT) on_writable(peer);
      if (ready.events & ~uint32_t{EPOLLOUT}) on_readable(peer);
      break;
    }
    case Tag::Pid: on_ended(*find(static_cast<uint32_t>(number))); break;
  }
}

bool Mesh::State::connected(const Bytes16 &process) {
  const Lock lock(mutex);
  return by_process.contains(process);
}

void Mesh::State::arrived(Arrival a) {
  {
    const Lock lock(mutex);
    arrivals.insert_or_assign(a.endpoint.process, std::move(a));
  }
  changed.notify_all();
}

void refuse_stranger() {
  ISTHMUS_WARN("refused a data connection: it has not the token of the two processes between which it says it is");
}

void Mesh::State::data_arrived(const net::Hello &h, const StreamIntro &intro, UniqueFd fd) {
  dialer.prepare(fd.get());
  Peer *again = nullptr;  // the peer whose stream comes again
  {
    const Lock lock(mutex);
    const auto claimed = by_process.find(h.process);
    const auto greeted = arrivals.find(h.process);
    const Bytes16 *token = claimed != by_process.end() ? &claimed->second->token
                           : greeted != arrivals.end() ? &greeted->second.token
                                                       : nullptr;  // await_data() will see
    const bool has_data = claimed != by_process.end() && peers[claimed->second->index].has_data;
    if ((token && *token != intro.token) || has_data != (intro.generation != 0)) return refuse_stranger();
    if (has_data) {
      again = claimed->second;
    } else {
      DataArrivals &d = data_arrivals[h.process];
      if (d.count != h.count) {
        d.count = h.count;
        d.fds.clear();
        d.fds.resize(h.count);
        d.tokens.resize(h.count);
      }
      d.fds[h.index] = std::move(fd);
      d.tokens[h.index] = intro.token;
      changed.notify_all();
      return;
    }
  }
  if (!again->lost.load(std::memory_order_relaxed)) events.on_stream(*again, h.index, intro.generation, std::move(fd));
}

void Mesh::State::queue(Peer::State &p, uint32_t index, uint16_t type, std::span<const std::byte> body, Goes goes) {
  if (p.movable && type < kFirstOwnType) p.unconfirmed.add(type, body);
  if (p.held) return;  // what is not confirmed goes again with the next connection
  if (goes == Goes::Along && heartbeat_ns <= kAlongNs) return p.out.add_for_later(type, body);
  const bool idle = p.out.idle();
  p.out.add(type, body);
  if (!idle) return;
  p.out.flush(p.control.get());
  if (!p.out.empty()) watch(epoll.get(), EPOLL_CTL_MOD, p.control.get(), EPOLLIN | EPOLLOUT, tagged(Tag::Control, index));
}

void Mesh::State::on_writable(Peer &peer) {
  Peer::State &p = *peer.state_;
  const Lock lock(p.mutex);
  if (!p.control) return;
  p.out.flush(p.control.get());
  if (p.out.empty()) {
    if (p.out.error() == 0) p.out.clear();  // else who reads asks what sending has found
    watch(epoll.get(), EPOLL_CTL_MOD, p.control.get(), EPOLLIN, tagged(Tag::Control, peer.index));
  }
}

std::string Mesh::State::hear(Peer &peer, uint16_t type, std::span<const std::byte> body) {
  Peer::State &p = *peer.state_;
  switch (static_cast<Own>(type)) {
    case Own::Bye: {
      p.bye = true;
      const Lock lock(p.mutex);
      if (p.control) net::answer_now(p.control.get());
      return {};
    }
    case Own::Heartbeat:
      if (const auto beat = parse_beat(body)) {
        p.beats.heard.fetch_add(1, std::memory_order_relaxed);
        p.beats.interval_ns = int64_t{beat->ms} * 1'000'000;
        const Lock lock(p.mutex);
        if (!p.movable || p.unconfirmed.confirm(beat->had)) return {};
        return "counts messages wrongly";
      }
      return "sent a malformed heartbeat";
    case Own::Resumed:
      if (const auto count = parse_count(body); count && p.go_on(peer, *count, epoll.get())) return {};
      return "counts messages wrongly";
    case Own::LeftOut:
      if (const auto span = parse_elapsed(body))
        return formatted(
            "took this process for lost, because this process had said nothing for {:.2f} s (ISTHMUS_SILENCE_MS)",
            span->ms / 1000.0);
      return "took this process for lost";
    default: return formatted("sent an unknown message (type {})", type);
  }
}

void Mesh::State::on_readable(Peer &peer) {
  if (peer.lost.load(std::memory_order_relaxed) || losses.has_ended(peer)) return;
  Peer::State &p = *peer.state_;
  int fd = -1, pidfd = -1;  // this thread alone closes them
  {
    const Lock lock(p.mutex);
    if (!p.control) return;  // held
    fd = p.control.get();
    if (p.pidfd) pidfd = p.pidfd.get();
  }
  const bool watched = pidfd >= 0;
  std::string end;
  const auto error_of_sending = [&p] {  // 0: no send failed, or one found that the peer had closed the connection
    const Lock lock(p.mutex);
    return p.out.error() == EPIPE ? 0 : p.out.error();
  };
  // A peer that has ended says no more. So all that the peer said is read before the peer is lost.
  for (size_t reads = 0; end.empty(); ++reads) {
    uint16_t type = 0;
    std::span<const std::byte> body;
    auto r = net::FrameReader::Result::More;
    while (end.empty() && (r = p.reader.next(type, body)) == net::FrameReader::Result::Frame) {
      if (type < kFirstOwnType) {
        ++p.had;
        events.on_message(peer, type, body);
      } else {
        end = hear(peer, type, body);
      }
    }
    if (!end.empty()) break;
    if (r == net::FrameReader::Result::Bad) {
      end = "sent " + p.reader.why();
      break;
    }
    if (reads >= kReadsAtOnce && !p.kernel_says.ended) {
      losses.unread = true;
      break;
    }
    const ssize_t n = net::recv_some(fd, p.reader.space());
    if (n > 0) {
      p.reader.received(static_cast<size_t>(n));
      peer.last_heard_ns.store(now_ns(), std::memory_order_relaxed);
      p.end_rest(fd, heartbeat_ns);
    } else if (n == 0 || errno == ECONNRESET || errno == EPIPE) {
      // A socket tells an error once. A sender may have been told, and then reading finds an end and nothing else.
      const int sending = error_of_sending();
      // A peer of this host is connected by a Unix socket, which the peer's end closes, or a peer that takes this process for lost. Of a peer
      // elsewhere a reset says nothing: who is in between may have made it.
      p.surely = watched ? p.bye || ends_now(pidfd, losses.ending) : n == 0 && sending == 0;
      p.kernel_says.unreachable = !p.bye && sending != 0 && sending != ECONNRESET;
      end = p.bye                       ? "shut Isthmus down"
            : p.kernel_says.unreachable ? system_text(kUnreachable, sending)
            : p.kernel_says.ended       ? "ended"
            : watched                   ? "ended, or closed its control connection"
                                        : "closed its control connection; it has probably ended";
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else {
      p.kernel_says.unreachable = true;
      end = system_text(kUnreachable, errno);
    }
  }
  if (end.empty()) return;
  if (p.drop_held(epoll.get())) {  // the peer has not taken it, and may take the next one
    p.kernel_says.unreachable = false;
    p.surely.store(false);
    return;
  }
  losses.ended.emplace_back(&peer, formatted("{} {}", process_text(peer.endpoint), end));
}

void Mesh::State::on_ended(Peer &peer) {
  Peer::State &p = *peer.state_;
  if (peer.lost.load(std::memory_order_relaxed)) {  // it was taken for lost before
    std::string why;
    {
      const Lock lock(p.mutex);
      if (!p.pidfd) return;
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, p.pidfd.get(), nullptr);
      p.pidfd.reset();
      p.surely.store(true);
      why = p.why;
    }
    return events.on_lost(peer, why);
  }
  p.kernel_says.ended = true;
  on_readable(peer);
  losses.ended.emplace_back(&peer, formatted("{} {}", process_text(peer.endpoint), p.bye ? "shut Isthmus down" : "ended"));
}

void Mesh::State::lose(Peer &peer, const std::string &why, Told told) {
  if (peer.lost.load(std::memory_order_relaxed)) return;
  {
    Peer::State &p = *peer.state_;
    const Lock lock(p.mutex);
    p.why = why;
    const bool surely = p.surely || p.bye || p.kernel_says.ended;
    p.surely.store(surely);
    // An orderly end would say that this process has ended.
    if (!surely && told == Told::No)
      for (const UniqueFd *fd : {&p.control, &p.before, &p.next})
        if (*fd) net::reset_when_closed(fd->get());
    peer.lost.store(true, std::memory_order_release);  // publishes `why`
    // Removed by hand: in a process that is just being forked a copy of the descriptor would keep the epoll entry alive.
    if (p.control) ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, p.control.get(), nullptr);
    p.control.reset();
    p.before.reset();
    p.next.reset();
    p.held = false;
    if (surely && p.pidfd) {  // else its end is still to come
      ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, p.pidfd.get(), nullptr);
      p.pidfd.reset();
    }
    p.out.clear();
    p.unconfirmed.clear();
  }
  {
    const Lock lock(mutex);  // a waiter between its test and its sleep holds the mutex
  }
  changed.notify_all();
  if (peer.state_->bye) ISTHMUS_INFO("{} has ended its use of Isthmus", process_text(peer.endpoint));
  else ISTHMUS_INFO("lost {}", why);
  events.on_lost(peer, why);
}

void Mesh::State::leave_out_the_silent() {
  for (uint32_t i = 0; Peer *peer = find(i); ++i) {
    Peer::State &p = *peer->state_;
    const auto silent = [&] {
      // Until its first heartbeat, or the end of an init with it, the peer may not have taken up the connection: init's deadline is for that.
      const int64_t since = peer->speaks_since_ns.load(std::memory_order_acquire);
      if ((p.beats.interval_ns == 0 && since == 0) || peer->lost.load(std::memory_order_relaxed)) return false;
      return losses.silence.over(std::max(peer->last_heard_ns.load(std::memory_order_relaxed), since),
                                 p.beats.interval_ns != 0 ? p.beats.interval_ns : heartbeat_ns);
    };
    if (silent()) on_readable(*peer);  // what has come and was not read yet
    if (!silent() || losses.has_ended(*peer)) continue;
    const int64_t ms =
        std::min<int64_t>((now_ns() - peer->last_heard_ns.load(std::memory_order_relaxed)) / 1'000'000, kMaxSpanMs);
    Told told = Told::No;
    {
      const Lock lock(p.mutex);  // the process hears it when it goes on
      if (p.control && !p.held && p.out.idle()) {
        queue(p, i, static_cast<uint16_t>(Own::LeftOut), encode(Elapsed{static_cast<uint32_t>(ms)}));
        if (p.out.empty() && p.out.error() == 0) told = Told::Yes;
      }
    }
    lose(*peer,
         formatted("{} has said nothing for {:.2f} s (ISTHMUS_SILENCE_MS): it is stopped, or gets no processor",
                   process_text(peer->endpoint), static_cast<double>(ms) / 1000.0),
         told);
  }
}

// Heartbeats would fill the window of a process that is stopped, and TCP takes a host whose window stays closed for lost, as one that answers nothing.
// So a peer that says nothing gets no more of them, and this host's kernel looks after the other one by probes, of which some may be lost. The peer
// speaks first when it goes on. Else no kernel sends probes, for the heartbeats tell of a host that has vanished, and a process that is stopped
// itself is no reason to end a connection.
void Mesh::State::beat(Peer &peer) {
  constexpr int kMostUnheard = 100;  // 2 KB
  Peer::State &p = *peer.state_;
  const auto body = encode(Beat{static_cast<uint32_t>(heartbeat_ns / 1'000'000), p.had});
  const Lock lock(p.mutex);
  if (!p.control || !p.out.idle()) return;
  if (p.beats.unheard >= kMostUnheard) {
    p.rest(heartbeat_ns);
    return;
  }
  ++p.beats.unheard;
  queue(p, peer.index, static_cast<uint16_t>(Own::Heartbeat), body);
}

void Peer::State::rest(int64_t heartbeat_ns) {
  constexpr int64_t kLeastNs = 5'000'000'000;
  if (beats.rest || net::unacknowledged(control.get()) != 0) return;
  beats.rest = true;
  const int64_t limit_ns = std::max(kHeldBeats * heartbeat_ns, kLeastNs);
  limit_unanswered(control.get(), limit_ns);
  net::begin_probes(control.get(), static_cast<int>(limit_ns / 10'000'000));
}

void Peer::State::end_rest(int fd, int64_t heartbeat_ns) noexcept {
  beats.unheard = 0;
  if (!std::exchange(beats.rest, false)) return;
  net::end_probes(fd);
  limit_unanswered(fd, kHeldBeats * heartbeat_ns);
}

}  // namespace isthmus::bootstrap
