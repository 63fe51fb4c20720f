// The last that a process says to its peers.
//
// A kernel that gets something for a TCP connection that was closed, or closes one with bytes that were not read, resets it. What it would have had
// to send again, because a packet was lost, is gone then: a rank's leaving, the reason of an abort. So a connection is read, and stays, until the
// kernel of the peer has everything.
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/lock.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

// In which nothing more of it gets through, or a peer of this host takes nothing more, and for all of it. In 5 s, half of what TCP's own limit is by
// default, it has been sent four times.
constexpr int kUnheardBeats = 50;
constexpr int64_t kLeastUnheardNs = 1'000'000'000, kMostUnheardNs = 5'000'000'000, kMostNs = 10'000'000'000;
// For the process that raised. The others wait 5 s for it to end first (python/isthmus/_ending.py).
constexpr int64_t kMostHeardNs = 4'000'000'000;

// What one peer has of it.
struct Last {
  Peer *peer;
  int64_t furthest = std::numeric_limits<int64_t>::min(), since_ns = 0;

  // Whether nothing more of it gets through. `waiting`: the bytes that the kernel has not taken.
  bool stuck(const net::Window &window, size_t waiting, int64_t heartbeat_ns) {
    const int64_t now = now_ns(), reached = window.acknowledged - static_cast<int64_t>(waiting);
    if (reached > furthest) furthest = reached, since_ns = now;
    return now - since_ns > std::clamp(kUnheardBeats * heartbeat_ns, kLeastUnheardNs, kMostUnheardNs);
  }
};

// False: the peer says no more.
bool read_on(int fd) {
  std::array<std::byte, 4096> unread;
  ssize_t n = 1;
  for (int reads = 0; reads < 256 && n > 0; ++reads) n = net::recv_some(fd, unread);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

}  // namespace

// A peer hears of this process's end by the end of its connection, so each is closed as soon as that peer has everything.
void Mesh::State::farewell() noexcept {
  try {
    std::vector<Last> all;
    for (uint32_t i = 0; Peer *peer = find(i); ++i) {
      Peer::State &p = *peer->state_;
      const Lock lock(p.mutex);
      if (!p.control) continue;
      p.out.add(static_cast<uint16_t>(Own::Bye), {});
      all.push_back({peer});
    }
    const Deadline deadline = Deadline::at_ns(now_ns() + kMostNs);
    for (std::vector<pollfd> waiting; !all.empty(); waiting.clear()) {
      std::erase_if(all, [&](Last &last) {
        Peer::State &p = *last.peer->state_;
        const Lock lock(p.mutex);
        const int fd = p.control.get();
        p.out.flush(fd);
        const bool reads = read_on(fd);
        net::answer_now(fd);  // the peer may end as well
        const net::Window window = net::window(fd);
        if (reads && (!p.out.empty() || window.under_way != 0) && !last.stuck(window, p.out.waiting(), heartbeat_ns) &&
            !deadline.passed()) {
          waiting.push_back({fd, static_cast<short>(p.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
          return false;
        }
        p.control.reset();
        return true;
      });
      // Nothing tells when bytes are acknowledged.
      if (!all.empty()) static_cast<void>(::poll(waiting.data(), waiting.size(), 1));
    }
  } catch (...) {}  // out of memory: the peers see that the connections close
}

// The control thread goes on meanwhile. Heard is what the peer's kernel has. Where the connection can be carried over to another address it may be
// another one before long; then what counts is what the peer has confirmed, which its heartbeats say.
void Mesh::await_heard() noexcept {
  struct Said {
    Last last;
    uint32_t puts;      // of the connection with the bytes
    int64_t bytes;      // 0: of this host, or there is no connection just now
    uint64_t messages;  // of a movable one
  };
  try {
    std::vector<Said> all;
    for (uint32_t i = 0; Peer *peer = state_->find(i); ++i) {
      Peer::State &p = *peer->state_;
      const Lock lock(p.mutex);
      if (!p.movable && !p.control) continue;
      Said said{{peer}, p.puts, 0, p.unconfirmed.count()};
      if (const int64_t acknowledged = p.control && !p.held ? net::window(p.control.get()).acknowledged : 0;
          acknowledged != 0)
        said.bytes = acknowledged + static_cast<int64_t>(p.out.waiting()) + net::unacknowledged(p.control.get());
      if (p.movable || said.bytes != 0) all.push_back(said);
    }
    const auto heard = [this](Said &said) {
      Peer::State &p = *said.last.peer->state_;
      const Lock lock(p.mutex);
      if (said.last.peer->lost.load(std::memory_order_relaxed)) return true;
      if (p.movable && p.unconfirmed.confirmed() >= said.messages) return true;
      if (!p.control) return !p.movable;
      const net::Window window = net::window(p.control.get());
      if (said.bytes != 0 && p.puts == said.puts && window.acknowledged >= said.bytes) return true;
      return !p.movable && said.last.stuck(window, p.out.waiting(), state_->heartbeat_ns);
    };
    for (const Deadline deadline = Deadline::at_ns(now_ns() + kMostHeardNs); !all.empty() && !deadline.passed();) {
      std::erase_if(all, heard);
      if (!all.empty()) static_cast<void>(::poll(nullptr, 0, 1));
    }
  } catch (...) {}  // out of memory
}

}  // namespace isthmus::bootstrap
