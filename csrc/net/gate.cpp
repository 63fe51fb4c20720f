#include "net/gate.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "base/lock.hpp"
#include "base/log.hpp"
#include "net/shortage.hpp"
#include "net/socket.hpp"

namespace isthmus::net {
namespace {

constexpr const char *kLeft = "it left inside the handshake";
constexpr int64_t kPauseNs = 100'000'000;  // after accept() failed for want of descriptors or memory
constexpr size_t kMostKeyless = 64;        // ranks whose last keyless client is remembered
constexpr uint64_t kLoggedAtOnce = 5;      // refusals that are logged before the log falls to one line a second

}  // namespace

Gate::Gate(const Bytes16 &process, UnknownKey policy) : process_(process), policy_(policy) {
  UniqueFd fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!fd) fail_system("epoll_create1", errno);
  epoll_ = GuardedFd(std::move(fd));
}

void Gate::add_listener(UniqueFd fd) {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = listeners_.size();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &e) != 0) fail_system("epoll_ctl", errno);
  listeners_.push_back(std::move(fd));
  descriptors_.store(static_cast<int>(listeners_.size() + clients_.size() + 1), std::memory_order_relaxed);
}

void Gate::add_key(const Bytes16 &key) {
  const Lock lock(keys_mutex_);
  keys_.push_back(key);
  keys_changed_.store(true, std::memory_order_release);
}

void Gate::drop_key(const Bytes16 &key) noexcept {
  const Lock lock(keys_mutex_);
  const auto at = std::find(keys_.begin(), keys_.end(), key);
  if (at != keys_.end()) keys_.erase(at);
}

bool Gate::has_key(const Bytes16 &key) const noexcept {
  const Lock lock(keys_mutex_);
  return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
}

int64_t Gate::next_deadline_ns() const noexcept {
  int64_t at = std::numeric_limits<int64_t>::max();
  for (const auto &[number, c] : clients_) at = std::min(at, c.deadline.ns());
  return resume_ns_ != 0 ? std::min(at, resume_ns_) : at;
}

void Gate::listen(bool on) {
  if (on == listening_) return;
  listening_ = on;
  for (size_t i = 0; i < listeners_.size(); ++i) {
    epoll_event e{};
    e.events = on ? uint32_t{EPOLLIN} : 0;
    e.data.u64 = i;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listeners_[i].get(), &e);
  }
}

void Gate::refuse(const std::string &from, const std::string &why) {
  ++refused_;
  if (why != kLeft || last_refused_.empty()) last_refused_ = from + ": " + why;  // that a client left explains little
  warn(formatted("refused a client: {}: {}", from, why), refused_ <= kLoggedAtOnce);
}

void Gate::warn(const std::string &text, bool at_once) {
  const int64_t now = now_ns();
  if (!at_once && now < next_log_ns_) {
    ++unlogged_;
    return;
  }
  next_log_ns_ = now + 1'000'000'000;
  ISTHMUS_WARN("{}{}", text, unlogged_ ? formatted(" (and {} more since the last line)", unlogged_) : "");
  unlogged_ = 0;
}

void Gate::accept_some() {
  for (const UniqueFd &listener : listeners_) {
    while (clients_.size() < kMaxHalfOpen) {
      std::string from;
      int error = 0;
      UniqueFd fd = accept_client(listener.get(), from, error);
      if (!fd) {
        if (error != 0) {
          resume_ns_ = now_ns() + kPauseNs;
          if (no_descriptors(error)) note_shortage(error);
          warn(formatted("cannot take a connection: {}", system_text("accept", error)), false);
        }
        break;
      }
      Credentials c;
      const bool local = local_address(fd.get()).family() == AF_UNIX;
      if (local && (!peer_credentials(fd.get(), c) || c.uid != ::geteuid())) {  // an abstract socket has no permissions
        refuse(from, "it belongs to another user");
        continue;
      }
      const uint64_t number = next_client_++;
      epoll_event e{};
      e.events = EPOLLIN;
      e.data.u64 = number;
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &e) != 0) {
        refuse(from, system_text("epoll_ctl", errno));
        continue;
      }
      clients_.emplace(number, Client{std::move(fd), Acceptor(process_), Deadline::at_ns(now_ns() + kHandshakeNs),
                                      std::move(from), local});
    }
  }
}

std::vector<Bytes16> Gate::keys_for(const Hello &hello) {
  if (key_of_) {
    const std::optional<Bytes16> key = key_of_(hello);
    return key ? std::vector<Bytes16>{*key} : std::vector<Bytes16>{};
  }
  const Lock lock(keys_mutex_);
  return keys_;
}

bool Gate::prove(Client &client, std::vector<Guest> &guests) {
  ByteVector reply;
  for (const Bytes16 &key : keys_for(client.acceptor.hello())) {
    if (!client.acceptor.try_key(key, reply)) continue;
    if (send_some(client.fd.get(), reply) != static_cast<ssize_t>(reply.size())) {
      refuse(client.from, kLeft);
      return false;
    }
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client.fd.get(), nullptr);
    guests.push_back({std::move(client.fd), client.acceptor.hello(), key, client.local, std::move(client.from)});
    return false;
  }
  if (policy_ == UnknownKey::Wait && !client.deadline.passed()) return true;
  client.acceptor.refuse(reply, job_);
  send_some(client.fd.get(), reply);  // a courtesy: the client is refused whether the reply arrives or not
  const Hello &h = client.acceptor.hello();
  if (h.role != Role::Rendezvous) {
    refuse(client.from, client.acceptor.why());
    return false;
  }
  if (keyless_.size() < kMostKeyless || keyless_.contains(h.index)) keyless_[h.index] = client.from;
  refuse(client.from, formatted("{}; it says that it is rank {} of {}", client.acceptor.why(), h.index, h.count));
  return false;
}

bool Gate::advance(Client &client, std::vector<Guest> &guests) {
  while (const size_t wants = client.acceptor.wants()) {
    const ssize_t n = recv_some(client.fd.get(), std::span(client.buffer).subspan(client.have, wants - client.have));
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) {
      // A peer that only asks whether this process is alive connects and leaves without a word.
      if (client.have > 0 || client.acceptor.state() != Acceptor::State::Hello) refuse(client.from, kLeft);
      return false;
    }
    client.have += static_cast<size_t>(n);
    const auto got = std::span<const std::byte>(client.buffer).first(client.have);
    ByteVector reply;
    if (client.have == wants || !client.acceptor.plausible(got)) {
      client.have = 0;
      client.acceptor.feed(got, reply);
    }
    if (client.acceptor.state() == Acceptor::State::Refused) {
      refuse(client.from, client.acceptor.why());
      return false;
    }
    if (!reply.empty() && send_some(client.fd.get(), reply) != static_cast<ssize_t>(reply.size())) {
      refuse(client.from, kLeft);
      return false;
    }
  }
  if (client.acceptor.state() != Acceptor::State::Unproved) return true;
  // The client is a guest or parked: the gate reads nothing more from it, and a parked client must not keep the epoll set awake.
  epoll_event quiet{};
  quiet.events = 0;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.fd.get(), &quiet);
  return prove(client, guests);
}

void Gate::service(std::vector<Guest> &guests) {
  const int64_t now = now_ns();
  if (resume_ns_ != 0 && now >= resume_ns_) resume_ns_ = 0;
  std::array<epoll_event, 64> events;
  const int n = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool incoming = false;
  for (int i = 0; i < n; ++i) {
    const auto at = clients_.find(events[static_cast<size_t>(i)].data.u64);
    if (at == clients_.end()) incoming = true;
    else if (at->second.acceptor.wants() == 0) clients_.erase(at);  // a parked client hung up
    else if (!advance(at->second, guests)) clients_.erase(at);
  }
  const bool keys_changed = keys_changed_.exchange(false, std::memory_order_acquire);
  for (auto at = clients_.begin(); at != clients_.end();) {
    Client &c = at->second;
    bool stays = true;
    if (c.acceptor.state() == Acceptor::State::Unproved && (keys_changed || c.deadline.passed())) {
      stays = prove(c, guests);
    } else if (c.deadline.passed()) {
      refuse(c.from, formatted("it did not finish the handshake within {:.0f} s", static_cast<double>(kHandshakeNs) / 1e9));
      stays = false;
    }
    at = stays ? std::next(at) : clients_.erase(at);
  }
  if (incoming && resume_ns_ == 0) accept_some();
  listen(clients_.size() < kMaxHalfOpen && resume_ns_ == 0);
  descriptors_.store(static_cast<int>(listeners_.size() + clients_.size() + 1), std::memory_order_relaxed);
}

}  // namespace isthmus::net
