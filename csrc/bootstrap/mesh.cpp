#include "bootstrap/mesh.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <sstream>

#include "base/doorbell.hpp"
#include "base/lock.hpp"
#include "base/small_file.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh_state.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

// The port of the hint; 0 where the hint is a host alone.
uint16_t port_in(const std::string &route_hint) {
  try {
    return net::split_host_port(route_hint).port;
  } catch (const Error &) { return 0; }
}

uint32_t rate_at(const std::string &address) {
  try {
    return net::rate_of(net::interface_of(address));
  } catch (const Error &) { return 0; }  // the interfaces cannot be listed here
}

std::vector<UniqueFd> open_listeners(const Settings &settings, const std::string &route_hint, Endpoint &self) {
  std::vector<UniqueFd> out;
  out.push_back(net::listen_unix(self.unix_name));
  const PortRange ports = settings.ports(Setting::Ports);
  // Rank 0 listens at that port, perhaps later than this process.
  const uint16_t rendezvous = port_in(route_hint);
  std::string failures;
  for (const net::Address &a : net::local_addresses(settings.text(Setting::Interface), route_hint)) {
    UniqueFd fd;
    const int error = net::try_listen_tcp(a, ports, rendezvous, fd);
    if (error == EADDRINUSE && !ports.any() && self.tcp.empty()) fail(Code::Resource, "{}", net::used_up_text(ports, a));
    if (no_descriptors(error)) fail_system(a.host().c_str(), error);
    if (error != 0) {
      failures += formatted("{}{}", failures.empty() ? "" : "; ", system_text(a.host().c_str(), error));
      continue;
    }
    const std::string text = net::local_address(fd.get()).text();
    if (self.tcp.empty()) self.rate = rate_at(text);
    self.tcp.push_back(text);
    self.delay_us = static_cast<uint32_t>(net::longest_delay_ns(fd.get()) / 1000);
    out.push_back(std::move(fd));
  }
  if (self.tcp.empty()) fail(Code::System, "cannot listen on any address of this host: {}; set ISTHMUS_INTERFACE", failures);
  return out;
}

}  // namespace

std::string process_text(const Endpoint &e) {
  std::string where;
  for (const auto &t : e.tcp) where += (where.empty() ? " (" : ", ") + t;
  return formatted("process {} on host {}{}", e.pid, e.hostname, where.empty() ? "" : where + ")");
}

std::string Peer::lost_text() const {
  if (!state_ || !lost.load(std::memory_order_acquire)) return {};
  const Lock lock(state_->mutex);
  return state_->why;
}

bool Peer::said_farewell() const { return state_ && lost.load(std::memory_order_acquire) && state_->bye; }

std::shared_ptr<const void> Peer::take_hold() {
  std::shared_ptr<const void> copy = hold;
  full_fence(fenced_);
  return copy;
}

bool Peer::surely_ended() const { return state_ && lost.load(std::memory_order_acquire) && state_->surely.load(); }

bool Peer::is_unreachable() const {
  return state_ && lost.load(std::memory_order_acquire) && state_->kernel_says.unreachable;
}

bool Peer::end_may_come() const {
  if (!state_ || !lost.load(std::memory_order_acquire)) return true;
  const Lock lock(state_->mutex);
  return static_cast<bool>(state_->pidfd);
}

bool Peer::is_ending() const {
  constexpr unsigned long kExiting = 4;  // PF_EXITING, of the flags in proc_pid_stat(5)
  if (pid <= 0 || !lost.load(std::memory_order_acquire) || !end_may_come()) return false;
  const std::string stat = read_small_file(formatted("/proc/{}/stat", pid).c_str());
  std::istringstream behind_name(stat.substr(std::min(stat.size(), stat.rfind(')') + 2)));
  std::string state, skipped;
  unsigned long flags = 0;
  behind_name >> state;
  for (int i = 0; i < 5; ++i) behind_name >> skipped;
  return behind_name >> flags && (flags & kExiting) != 0;
}

Mesh::State::State(const Settings &settings, MeshEvents &handler, int arena_fd, size_t arena_bytes,
                   const std::string &route_hint)
    : events(handler),
      heartbeat_ns(settings.integer(Setting::HeartbeatMs) * 1'000'000),
      self{net::random16(), host_identity(), host_name(), {}, {}, ::getpid()},
      arena(offer_arena(arena_fd, arena_bytes, self.process)),
      dialer(self, arena, settings.text(Setting::TcpCongestion)),
      gate(self.process, net::Gate::UnknownKey::Wait),
      losses{Silence(settings.integer(Setting::SilenceMs) * 1'000'000), {}} {
  const int64_t silence_ms = settings.integer(Setting::SilenceMs), heartbeat_ms = settings.integer(Setting::HeartbeatMs);
  if (silence_ms > 0 && silence_ms < 3 * heartbeat_ms)
    fail(Code::Config, "ISTHMUS_SILENCE_MS={} is less than three times ISTHMUS_HEARTBEAT_MS={}", silence_ms, heartbeat_ms);
  self.unix_name = formatted("isthmus-{}-{}", self.pid, hex(self.process));
  for (UniqueFd &fd : open_listeners(settings, route_hint, self)) gate.add_listener(std::move(fd));
  UniqueFd e(::epoll_create1(EPOLL_CLOEXEC)), w(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!e || !w) fail_system("epoll_create1, eventfd", errno);
  epoll = net::GuardedFd(std::move(e));
  wake_fd = net::GuardedFd(std::move(w));
  watch(epoll.get(), EPOLL_CTL_ADD, wake_fd.get(), EPOLLIN, tagged(Tag::Wake, 0));
  watch(epoll.get(), EPOLL_CTL_ADD, gate.fd(), EPOLLIN, tagged(Tag::Gate, 0));
  greetings.emplace(arena, epoll.get(), *this);

  // Signals are for the program's threads, so this thread starts with all of them blocked.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread = std::thread([this] { run(); });
  } catch (const std::exception &error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    fail(Code::Resource, "cannot start the control thread: {}", error.what());
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Mesh::State::~State() { shut_down(); }

void Mesh::State::shut_down() {
  if (!thread.joinable()) return;
  stop.store(true, std::memory_order_release);
  wake();
  thread.join();
}

void Mesh::State::wake() const noexcept {
  const uint64_t one = 1;
  // The only failure is a full counter, and a full counter has woken the thread.
  [[maybe_unused]] const ssize_t n = ::write(wake_fd.get(), &one, sizeof one);
}

Peer *Mesh::State::find(uint32_t index) {
  const Lock lock(mutex);
  return index < peers.size() ? peers[index].peer.get() : nullptr;
}

Mesh::Mesh(const Settings &settings, MeshEvents &events, int arena_fd, size_t arena_bytes, const std::string &route_hint) {
  state_ = std::make_unique<State>(settings, events, arena_fd, arena_bytes, route_hint);
}

Mesh::~Mesh() {
  if (!birth_.here()) static_cast<void>(state_.release());  // the thread and the descriptors exist in the parent only
}

void Mesh::shut_down() noexcept {
  if (birth_.here()) state_->shut_down();
}

const Endpoint &Mesh::self() const noexcept { return state_->self; }

void Mesh::add_key(const Bytes16 &key) {
  state_->gate.add_key(key);
  state_->wake();
}

void Mesh::drop_key(const Bytes16 &key) noexcept { state_->gate.drop_key(key); }

bool Mesh::has_key(const Bytes16 &key) const noexcept { return state_->gate.has_key(key); }

bool Mesh::send(Peer &peer, uint16_t type, std::span<const std::byte> body, Goes goes) noexcept {
  if (type >= kFirstOwnType || body.size() > net::kMaxControlBody || peer.lost.load(std::memory_order_acquire)) return false;
  try {
    Peer::State &p = *peer.state_;
    const Lock lock(p.mutex);
    if (!p.control && !p.held) return false;
    if (std::max(p.out.waiting(), p.unconfirmed.waiting()) > kMaxQueued) {
      if (!std::exchange(p.full_logged, true))
        ISTHMUS_ERROR("{} takes no control messages; {} bytes wait for it, further ones are dropped",
                      process_text(peer.endpoint), std::max(p.out.waiting(), p.unconfirmed.waiting()));
      return false;
    }
    state_->queue(p, peer.index, type, body, goes);
    return true;
  } catch (...) {
    return false;  // out of memory
  }
}

// The peer's memory may be read, and this process's memory written by the peer, until the peer has ended for certain. Sockets may go before.
void Mesh::let_go_of_the_gone(const std::function<bool(Peer &)> &rest) {
  State &s = *state_;
  for (uint32_t i = 0; Peer *peer = s.find(i); ++i) {
    if (!peer->lost.load(std::memory_order_acquire)) continue;
    {
      const Lock lock(s.mutex);
      const Known &known = s.peers[i];
      if (known.let_go || s.connecting.contains(peer->endpoint.process)) continue;
      if ((peer->arena || known.shared.mapping) && !peer->surely_ended()) continue;
    }
    // Who takes a copy looks afterwards whether the peer is lost.
    full_fence(peer->fenced_);
    if (peer->hold.use_count() > 1 || !rest(*peer)) continue;
    const Lock lock(s.mutex);
    Known &known = s.peers[i];
    if (!peer->pinned.load()) peer->arena.vacate();
    known.shared.mapping.reset();
    peer->data.clear();
    s.data_arrivals.erase(peer->endpoint.process);
    known.let_go = true;
  }
}

Mesh::Counts Mesh::counts() const noexcept {
  State &s = *state_;
  const Lock lock(s.mutex);
  Counts c{1, s.gate.descriptors() + s.greetings->count() + 2, static_cast<int>(s.peers.size()), 0};
  for (const Known &known : s.peers) {
    const Peer::State &p = *known.peer->state_;
    c.heartbeats += p.beats.heard.load(std::memory_order_relaxed);
    const Lock peer_lock(p.mutex);
    c.descriptors += (p.control ? 1 : 0) + (p.before ? 1 : 0) + (p.pidfd ? 1 : 0);
  }
  c.descriptors += static_cast<int>(s.arrivals.size());
  for (const auto &[process, d] : s.data_arrivals)
    for (const UniqueFd &fd : d.fds) c.descriptors += fd ? 1 : 0;
  return c;
}

}  // namespace isthmus::bootstrap
