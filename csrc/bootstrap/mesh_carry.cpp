// A control connection that falls silent is carried over to another address of the pair.
//
//   the side that dials                               the other side
//     segments are sent again, nothing answers          (notices the same, and waits)
//     connects at any address, proves the key  ------>   gate
//     reads the old connection no more
//     Resume: token, messages that have come   ------>   reads the old connection no more, closes it
//                                              <------   Resumed: messages that have come
//     closes the old connection
//     what had not come                        <----->   what had not come
//
// A process that dies while its control connection is silent cannot say so by that. Its kernel refuses where the process listened, at the
// addresses by which its data streams had reached this one (absence.hpp). Both sides ask, as long as the connection is silent.
//
// Who ends a connection has ended, so a connection that ends is never carried over: only silence is. The handshake shows that the process at
// the other address lives and is the same one. The old connection stays open, unread, until the peer has taken the new one, since its end
// would mean that this process has ended. Where no address answers, the silent connection fails in the time of 100 heartbeats, as any does.
#include <sys/epoll.h>

#include <algorithm>
#include <climits>

#include "base/lock.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

// A live kernel delays its answer to a heartbeat by 200 ms at most, and answers one that is sent again at once.
constexpr int64_t kSilentNs = 250'000'000;

}  // namespace

bool Peer::State::silent() const { return is_silent(net::answers(control.get())); }

bool is_silent(const net::Answers &a) noexcept {
  const uint32_t enough = a.probed ? 2 : 1;  // a probe is out for one round trip also where all is well
  return a.unanswered != 0 && a.again >= enough && a.quiet_ns >= kSilentNs;
}

void limit_unanswered(int fd, int64_t ns) noexcept {
  net::limit_unacknowledged(fd, static_cast<int>(std::min<int64_t>(ns / 1'000'000, INT_MAX)));
}

void Peer::State::put(UniqueFd fd, uint32_t index, int epoll, int64_t heartbeat_ns) {
  if (control) ::epoll_ctl(epoll, EPOLL_CTL_DEL, control.get(), nullptr);
  limit_unanswered(fd.get(), kHeldBeats * heartbeat_ns);
  control = std::move(fd);
  ++puts;
  beats.unheard = 0;
  beats.rest = false;
  reader = net::FrameReader();
  out.clear();
  watch(epoll, EPOLL_CTL_ADD, control.get(), EPOLLIN | EPOLLOUT, tagged(Tag::Control, index));
}

// ---- the side that dials ---------------------------------------------------------------------------------------------------------------

bool Mesh::to_carry_over(const Peer &peer) const noexcept {
  if (!dials(peer) || peer.lost.load(std::memory_order_acquire)) return false;
  const Peer::State &p = *peer.state_;
  const Lock lock(p.mutex);
  return !p.next && p.unheard();
}

void Mesh::carry_over(Peer &peer, const Bytes16 &key, Deadline deadline) {
  State &s = *state_;
  Peer::State &p = *peer.state_;
  uint32_t number;
  {
    const Lock lock(p.mutex);
    number = ++p.connections;
  }
  UniqueFd fd = s.dialer.control_again(peer.endpoint, key, number, deadline);
  const Lock lock(s.mutex);
  {
    const Lock peer_lock(p.mutex);
    if (number != p.connections || peer.lost.load(std::memory_order_acquire)) return;
    p.next = std::move(fd);
  }
  s.fresh.push_back(&peer);
  s.wake();
}

void Peer::State::take_next(const Peer &peer, int epoll, int64_t heartbeat_ns) {
  const Lock lock(mutex);
  if (!next || peer.lost.load(std::memory_order_relaxed)) return;
  if (!held) {
    if (control) ::epoll_ctl(epoll, EPOLL_CTL_DEL, control.get(), nullptr);
    before = std::move(control);
    held_since = now_ns();
    held = true;
  }
  put(std::move(next), peer.index, epoll, heartbeat_ns);
  out.add(static_cast<uint16_t>(Own::Resume), encode(Resume{peer.token, had}));
}

bool Peer::State::go_on(const Peer &peer, uint64_t count, int epoll) {
  const Lock lock(mutex);
  if (!held || !unconfirmed.confirm(count)) return false;
  held = false;
  before.reset();
  unconfirmed.send_again(out);
  watch(epoll, EPOLL_CTL_MOD, control.get(), EPOLLIN | EPOLLOUT, tagged(Tag::Control, peer.index));
  ISTHMUS_WARN("the control connection to {} had fallen silent, and goes on over another address",
               process_text(peer.endpoint));
  return true;
}

bool Peer::State::drop_held(int epoll) {
  const Lock lock(mutex);
  if (!held) return false;
  ::epoll_ctl(epoll, EPOLL_CTL_DEL, control.get(), nullptr);
  net::reset_when_closed(control.get());  // an orderly end would say that this process has ended
  control.reset();
  out.clear();
  return true;
}

bool Peer::State::held_too_long(int64_t heartbeat_ns) const {
  const Lock lock(mutex);
  return held && now_ns() - held_since > kHeldBeats * heartbeat_ns;
}

// ---- both sides, on the control thread -------------------------------------------------------------------------------------------------

void Mesh::State::give_up_unheard(Peer &peer) {
  Peer::State &p = *peer.state_;
  if (p.held_too_long(heartbeat_ns)) {
    p.kernel_says.unreachable = true;
    lose(peer, formatted("{} is unreachable: its control connection fell silent, and it took no other one",
                         process_text(peer.endpoint)));
  }
  bool absent = false;
  {
    const Lock lock(mutex);
    Absence &absence = peers[peer.index].absence;
    const Lock peer_lock(p.mutex);
    if (p.unheard()) absent = absence.look(now_ns());
    else absence.forget();
  }
  if (!absent) return;
  on_readable(peer);  // what it has said may have come after all
  if (!losses.has_ended(peer))
    lose(peer, formatted("{} refuses connections where it listened; it has probably ended", process_text(peer.endpoint)));
}

// ---- the other side, on the control thread ---------------------------------------------------------------------------------------------

void Mesh::State::resumed(const net::Hello &hello, const Resume &resume, UniqueFd fd) {
  Peer *peer = nullptr;
  {
    const Lock lock(mutex);
    if (const auto at = by_process.find(hello.process); at != by_process.end()) peer = at->second;
  }
  if (!peer || peer->lost.load(std::memory_order_relaxed)) return;
  Peer::State &p = *peer->state_;
  bool counts = true;
  {
    const Lock lock(p.mutex);
    if (!p.movable || resume.token != peer->token || hello.index <= p.connections) {
      ISTHMUS_WARN("refused a control connection: it is not one that {} has now", process_text(peer->endpoint));
      return;
    }
    p.connections = hello.index;
    p.put(std::move(fd), peer->index, epoll.get(), heartbeat_ns);
    counts = p.unconfirmed.confirm(resume.had);
    p.out.add(static_cast<uint16_t>(Own::Resumed), encode_count(p.had));
    p.unconfirmed.send_again(p.out);
    peer->last_heard_ns.store(now_ns(), std::memory_order_relaxed);
  }
  if (!counts) return lose(*peer, formatted("{} counts messages wrongly", process_text(peer->endpoint)));
  ISTHMUS_WARN("the control connection to {} had fallen silent, and goes on over another address",
               process_text(peer->endpoint));
}

}  // namespace isthmus::bootstrap
