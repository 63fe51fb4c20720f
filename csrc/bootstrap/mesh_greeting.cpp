// The accepting side of a new connection, between the gate and connect(): who it is, and the exchange of arenas.
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

constexpr uint32_t kMaxStreams = 256;

std::string agree(const PeerArena &mine, const ArenaOffer &offer, const Bytes16 &read_back, const std::string &their_why) {
  if (!mine.why.empty()) return mine.why;
  if (!their_why.empty()) return "it says: " + their_why;
  return read_back == offer.nonce ? std::string() : "the peer read another nonce than ours";
}

}  // namespace

void Mesh::State::refuse(const Greeting &g, const std::string &why) {
  ISTHMUS_WARN("refused a peer: {}: {}", g.guest.from, why);
}

void Mesh::State::admit(net::Guest &&guest) {
  Greeting g{std::move(guest), Deadline::at_ns(now_ns() + net::kHandshakeNs), net::FrameReader(), {}, {}, {}};
  const net::Hello &h = g.guest.hello;
  if (h.version != net::kProtocolVersion)
    return refuse(g, "it speaks " + net::version_text(h.version, net::kProtocolVersion));
  if (h.role == net::Role::Rendezvous) return refuse(g, "it looks for a rendezvous; this is a control port");
  if (h.role == net::Role::Data && (h.count > kMaxStreams || h.index >= h.count))
    return refuse(g, formatted("it announced data stream {} of {}", h.index, h.count));
  if (h.role == net::Role::Control) {
    const Lock lock(mutex);
    if (by_process.contains(h.process)) return refuse(g, "it is connected already");
  }
  const uint64_t number = next_greeting++;
  watch(epoll.get(), EPOLL_CTL_ADD, g.guest.fd.get(), EPOLLIN, tagged(Tag::Greeting, number));
  greetings.emplace(number, std::move(g));
}

bool Mesh::State::advance(Greeting &g) {
  const int fd = g.guest.fd.get();
  for (;;) {
    uint16_t type = 0;
    std::span<const std::byte> body;
    switch (g.reader.next(type, body)) {
      case net::FrameReader::Result::Bad: refuse(g, g.reader.why()); return false;
      case net::FrameReader::Result::Frame:
        if (!on_greeting_frame(g, type, body)) return false;
        continue;
      case net::FrameReader::Result::More: break;
    }
    // Not a byte more than the frame: on a data connection the next ones are the link's.
    auto space = g.reader.space();
    space = space.first(std::min(space.size(), g.reader.missing()));
    const ssize_t n = g.guest.local ? net::recv_with_fd(fd, space, g.passed) : net::recv_some(fd, space);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) {
      refuse(g, "it left inside the greeting");
      return false;
    }
    g.reader.received(static_cast<size_t>(n));
  }
}

bool Mesh::State::on_greeting_frame(Greeting &g, uint16_t type, std::span<const std::byte> body) {
  const net::Hello &h = g.guest.hello;
  const auto own = static_cast<Own>(type);
  if (h.role == net::Role::Data) {
    if (own != Own::Ready) {
      refuse(g, "an unexpected message");
      return false;
    }
    ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, g.guest.fd.get(), nullptr);
    {
      const Lock lock(mutex);
      DataArrivals &d = data_arrivals[h.process];
      if (d.count != h.count) {
        d.count = h.count;
        d.fds.clear();
        d.fds.resize(h.count);
      }
      d.fds[h.index] = std::move(g.guest.fd);
    }
    changed.notify_all();
    return false;
  }
  if (own == Own::Intro && !g.intro) {
    g.intro = parse_intro(body);
    if (!g.intro || g.intro->endpoint.process != h.process) {
      refuse(g, "a malformed introduction");
      return false;
    }
    if (!g.guest.local) {
      arrived(g);
      return false;
    }
    g.arena = map_peer_arena(g.passed, g.intro->arena_bytes, h.process);
    g.passed.reset();
    net::ByteVector reply;
    net::append_frame(reply, static_cast<uint16_t>(Own::Attach), encode(Attach{arena.bytes, g.arena.nonce, g.arena.why}));
    if (net::send_with_fd(g.guest.fd.get(), reply, arena.fd, Deadline(0)) == net::Io::Ok) return true;
    refuse(g, "it left inside the greeting");
    return false;
  }
  const auto ready = own == Own::Ready && g.intro ? parse_ready(body) : std::nullopt;
  if (!ready) {
    refuse(g, "an unexpected message");
    return false;
  }
  g.arena.why = agree(g.arena, arena, ready->nonce, ready->why);
  if (!g.arena.why.empty()) g.arena.mapping.reset();
  arrived(g);
  return false;
}

void Mesh::State::arrived(Greeting &g) {
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, g.guest.fd.get(), nullptr);
  if (!g.guest.local) g.arena.why = "it came by TCP";
  Arrival a{std::move(g.guest.fd), std::move(g.intro->endpoint), g.guest.local, std::move(g.arena), std::move(g.reader)};
  {
    const Lock lock(mutex);
    arrivals.insert_or_assign(a.endpoint.process, std::move(a));
  }
  changed.notify_all();
}

Arrival Mesh::State::dial_local(const Endpoint &e, const Bytes16 &key, UniqueFd fd, Deadline deadline) {
  const std::string to = process_text(e);
  const auto check = [&](net::Io io) {
    if (io == net::Io::Timeout) fail(Code::Timeout, "{} did not finish the greeting in time", to);
    if (io != net::Io::Ok) fail(Code::PeerLost, "{} closed the connection inside the greeting", to);
  };
  net::Hello hello;
  hello.process = self.process;
  if (net::dial(fd.get(), hello, key, to, deadline).process != e.process)
    fail(Code::PeerLost, "another process answers for {}", to);
  net::ByteVector message;
  net::append_frame(message, static_cast<uint16_t>(Own::Intro), encode(Intro{arena.bytes, self}));
  check(net::send_with_fd(fd.get(), message, arena.fd, deadline));

  net::FrameReader reader;
  UniqueFd passed;
  uint16_t type = 0;
  std::span<const std::byte> body;
  net::FrameReader::Result r;
  while ((r = reader.next(type, body)) == net::FrameReader::Result::More) {
    const ssize_t n = net::recv_with_fd(fd.get(), reader.space(), passed);
    if (n > 0) reader.received(static_cast<size_t>(n));
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) check(net::Io::Closed);
    else if (net::wait_events(fd.get(), POLLIN, deadline) == 0) check(net::Io::Timeout);
  }
  const auto attach =
      r == net::FrameReader::Result::Frame && type == static_cast<uint16_t>(Own::Attach) ? parse_attach(body) : std::nullopt;
  if (!attach) fail(Code::Mismatch, "{} answered the greeting with a malformed message", to);
  PeerArena theirs = map_peer_arena(passed, attach->arena_bytes, e.process);
  theirs.why = agree(theirs, arena, attach->nonce, attach->why);
  if (!theirs.why.empty()) theirs.mapping.reset();
  message.clear();
  net::append_frame(message, static_cast<uint16_t>(Own::Ready), encode(Ready{theirs.nonce, theirs.why}));
  check(net::send_all(fd.get(), message, deadline));
  return {std::move(fd), e, true, std::move(theirs), std::move(reader)};
}

}  // namespace isthmus::bootstrap
