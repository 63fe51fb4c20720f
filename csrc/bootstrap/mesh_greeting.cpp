#include "bootstrap/mesh_greeting.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/control_epoll.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint32_t kMaxStreams = kMostStreams;

// Who greets has proved the job key, and takes the connection for made. A process that is stopped meanwhile finishes its greeting when it goes on; one
// that has ended closes the connection.
constexpr int64_t kGreetingNs = 600'000'000'000;

}  // namespace

void Greetings::refuse(const Greeting &g, const std::string &why) {
  ISTHMUS_WARN("refused a peer: {}: {}", g.guest.from, why);
}

void Greetings::admit(net::Guest &&guest) {
  Greeting g{std::move(guest), Deadline::at_ns(now_ns() + kGreetingNs), net::FrameReader(), {}, {}, {}};
  const net::Hello &h = g.guest.hello;
  if (h.version != net::kProtocolVersion)
    return refuse(g, "it speaks " + net::version_text(h.version, net::kProtocolVersion));
  if (h.role == net::Role::Rendezvous) return refuse(g, "it looks for a rendezvous; this is a control port");
  if (h.role == net::Role::Data && (h.count > kMaxStreams || h.index >= h.count))
    return refuse(g, formatted("it announced data stream {} of {}", h.index, h.count));
  if (h.role == net::Role::Control && events_.connected(h.process) != (h.index != 0))
    return refuse(
        g, h.index == 0 ? "it is connected already" : "it has no control connection that another could take the place of");
  const uint64_t number = next_++;
  watch(epoll_, EPOLL_CTL_ADD, g.guest.fd.get(), EPOLLIN, tagged(Tag::Greeting, number));
  open_.emplace(number, std::move(g));
}

bool Greetings::advance(Greeting &g) {
  const int fd = g.guest.fd.get();
  for (;;) {
    uint16_t type = 0;
    std::span<const std::byte> body;
    switch (g.reader.next(type, body)) {
      case net::FrameReader::Result::Bad: refuse(g, g.reader.why()); return false;
      case net::FrameReader::Result::Frame:
        if (!on_frame(g, type, body)) return false;
        continue;
      case net::FrameReader::Result::More: break;
    }
    // Not a byte more than the frame is read: on a data connection the next bytes are the link's.
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

bool Greetings::on_frame(Greeting &g, uint16_t type, std::span<const std::byte> body) {
  const net::Hello &h = g.guest.hello;
  const auto own = static_cast<Own>(type);
  if (h.role == net::Role::Data) {
    const auto intro = own == Own::Stream ? parse_stream_intro(body) : std::nullopt;
    if (!intro) {
      refuse(g, "an unexpected message");
      return false;
    }
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, g.guest.fd.get(), nullptr);
    events_.data_arrived(h, *intro, std::move(g.guest.fd));
    return false;
  }
  if (h.role == net::Role::Control && h.index != 0) {
    const auto resume = own == Own::Resume ? parse_resume(body) : std::nullopt;
    if (!resume) {
      refuse(g, "an unexpected message");
      return false;
    }
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, g.guest.fd.get(), nullptr);
    events_.resumed(h, *resume, std::move(g.guest.fd));
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
    net::append_frame(reply, static_cast<uint16_t>(Own::Attach), encode(Attach{ours_.bytes, g.arena.nonce, g.arena.why}));
    if (net::send_with_fd(g.guest.fd.get(), reply, ours_.fd, Deadline(0)) == net::Io::Ok) return true;
    refuse(g, "it left inside the greeting");
    return false;
  }
  const auto ready = own == Own::Ready && g.intro ? parse_ready(body) : std::nullopt;
  if (!ready) {
    refuse(g, "an unexpected message");
    return false;
  }
  agree(g.arena, ours_, ready->nonce, ready->why);
  arrived(g);
  return false;
}

void Greetings::arrived(Greeting &g) {
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, g.guest.fd.get(), nullptr);
  if (!g.guest.local) g.arena.why = "it came by TCP";
  events_.arrived({std::move(g.guest.fd), std::move(g.intro->endpoint), g.guest.local, std::move(g.arena),
                   std::move(g.reader), g.intro->token});
}

int64_t Greetings::next_deadline_ns() const noexcept {
  int64_t next = INT64_MAX;
  for (const auto &[number, g] : open_) next = std::min(next, g.deadline.ns());
  return next;
}

void Greetings::on_readable(uint64_t number) {
  const auto at = open_.find(number);
  if (at != open_.end() && !advance(at->second)) open_.erase(at);
}

void Greetings::expire() {
  for (auto at = open_.begin(); at != open_.end();) {
    const bool late = at->second.deadline.passed();
    if (late) refuse(at->second, "it did not finish its greeting in time");
    at = late ? open_.erase(at) : std::next(at);
  }
  count_.store(static_cast<int>(open_.size()), std::memory_order_relaxed);
}

}  // namespace isthmus::bootstrap
