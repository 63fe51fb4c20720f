#include "net/socket.hpp"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "base/error.hpp"
#include "base/small_file.hpp"
#include "net/fork_guard.hpp"
#include "net/wait.hpp"

namespace isthmus::net {
namespace {

constexpr int kBacklog = 4096;       // the kernel cuts it to net.core.somaxconn
constexpr int kDelayMax = 46;        // TCP_DELACK_MAX_US, Linux 6.15; microseconds, at least two ticks
constexpr int kSoPeerPidfd = 77;     // SO_PEERPIDFD, Linux 6.5; older headers lack the name
constexpr long kSysPidfdOpen = 434;  // pidfd_open, Linux 5.3; the same number on every architecture
constexpr int kPasses = 50;          // over a range of ports, where others try for the same ones at the same moment

UniqueFd new_socket(int family) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd) close_in_child(fd.get());
  return fd;
}

void set_option(int fd, int level, int option) noexcept {
  const int one = 1;
  ::setsockopt(fd, level, option, &one, sizeof one);
}

void prepare(int fd) noexcept {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY);
  for (const int us : {8'000, 20'000})
    if (::setsockopt(fd, IPPROTO_TCP, kDelayMax, &us, sizeof us) == 0) return;
}

sockaddr_un unix_address(const std::string &name, socklen_t &length) {
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  if (name.empty() || name.size() > sizeof a.sun_path - 1) fail(Code::Argument, "Unix socket name of {} bytes", name.size());
  std::memcpy(a.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return a;
}

bool again(int error) noexcept { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// 0 or an errno. `bound`: the address was free, so EADDRINUSE came from listen().
int listen_at(const Address &address, UniqueFd &out, bool &bound) {
  UniqueFd fd = new_socket(address.family());
  if (!fd) return errno;
  // A port in TIME_WAIT may be used again. Two listeners still exclude each other.
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR);
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY);
  prepare(fd.get());
  bound = ::bind(fd.get(), address.raw(), address.length()) == 0;
  if (!bound || ::listen(fd.get(), kBacklog) != 0) return errno;
  out = std::move(fd);
  return 0;
}

}  // namespace

int try_listen_tcp(const Address &address, UniqueFd &out) {
  bool bound = false;
  return listen_at(address, out, bound);
}

int try_listen_tcp(const Address &address, PortRange ports, uint16_t fixed, UniqueFd &out) {
  if (ports.any()) return try_listen_tcp(address.with_port(0), out);
  const unsigned count = ports.count();
  const unsigned start = static_cast<unsigned>(::getpid()) % count;  // so neighbours seldom try for the same port
  for (int pass = 0; pass < kPasses; ++pass) {
    bool contended = false;
    for (unsigned i = 0; i < count; ++i) {
      const auto port = static_cast<uint16_t>(ports.first + (start + i) % count);
      if (port == fixed) continue;
      bool bound = false;
      const int error = listen_at(address.with_port(port), out, bound);
      if (error != EADDRINUSE) return error;
      contended |= bound;
    }
    if (!contended) break;
    // Two processes that bind one port and listen at the same moment may refuse each other, and then neither has the port.
    sleep_until(Deadline(1e-5 * (1 + random16()[0])));
  }
  return EADDRINUSE;
}

std::string used_up_text(PortRange ports, const Address &address) {
  return formatted(
      "ISTHMUS_PORTS={}-{}: none of its {} port{} is free at {}. Each process takes one, one more for each unique id that "
      "it "
      "made, until all ranks have met, and one for all ids that it made behind a front door; the port of the rendezvous is "
      "left out. Give a larger "
      "range, in the firewall too, or end what holds them (`ss -ltnp` shows it)",
      ports.first, ports.last, ports.count(), ports.count() == 1 ? "" : "s", address.host());
}

UniqueFd listen_tcp(const Address &address) {
  UniqueFd fd;
  const int error = try_listen_tcp(address, fd);
  if (error != 0) throw Error(system_code(error), system_text(formatted("listening at {}", address.text()).c_str(), error));
  return fd;
}

UniqueFd listen_unix(const std::string &name) {
  socklen_t length = 0;
  const sockaddr_un a = unix_address(name, length);
  UniqueFd fd = new_socket(AF_UNIX);
  if (!fd || ::bind(fd.get(), reinterpret_cast<const sockaddr *>(&a), length) != 0 || ::listen(fd.get(), kBacklog) != 0)
    fail_system("listening on a Unix socket", errno);
  return fd;
}

Address local_address(int fd) {
  sockaddr_storage s{};
  socklen_t n = sizeof s;
  if (::getsockname(fd, reinterpret_cast<sockaddr *>(&s), &n) != 0) fail_system("getsockname", errno);
  return {reinterpret_cast<const sockaddr *>(&s), n};
}

Address remote_address(int fd) {
  sockaddr_storage s{};
  socklen_t n = sizeof s;
  if (::getpeername(fd, reinterpret_cast<sockaddr *>(&s), &n) != 0) fail_system("getpeername", errno);
  return {reinterpret_cast<const sockaddr *>(&s), n};
}

void reset_when_closed(int fd) noexcept {
  const linger at_once{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void limit_unacknowledged(int fd, int ms) noexcept {
  const unsigned limit = static_cast<unsigned>(ms);
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit, sizeof limit);
}

void begin_probes(int fd, int every_ms) noexcept {
  const int on = 1, seconds = std::clamp(every_ms / 1000, 1, 32'767);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void end_probes(int fd) noexcept {
  const int off = 0;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
}

void limit_unsent(int fd, int bytes) noexcept { ::setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes); }

int use_congestion(int fd, const std::string &name) noexcept {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0 ? 0 : errno;
}

std::string allowed_congestion() { return read_small_file("/proc/sys/net/ipv4/tcp_allowed_congestion_control"); }

int64_t longest_delay_ns(int fd) noexcept {
  int us = 0;
  socklen_t n = sizeof us;
  return ::getsockopt(fd, IPPROTO_TCP, kDelayMax, &us, &n) == 0 && us > 0 ? int64_t{us} * 1000 : 0;
}

void answer_now(int fd) noexcept {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof on);
}

int64_t most_under_way() {
  const auto third = [](const char *path) {  // of three numbers: the most that the kernel gives a connection by itself
    std::istringstream numbers(read_small_file(path));
    int64_t least = 0, usual = 0, most = 0;
    return numbers >> least >> usual >> most ? most : 0;
  };
  // The window that a receiver announces leaves a third of its memory to what the kernel keeps beside the bytes.
  return std::min(third("/proc/sys/net/ipv4/tcp_wmem"), third("/proc/sys/net/ipv4/tcp_rmem") / 3 * 2);
}

bool interface_down(int fd) noexcept {
  // The cable itself, IFF_LOWER_UP in the kernel's words. IFF_RUNNING follows it by up to a second, so an interface that carries already
  // would count as down.
  constexpr unsigned kLowerUp = 1u << 16;
  try {
    const Address own = local_address(fd);
    ifaddrs *all = nullptr;
    if (::getifaddrs(&all) != 0) return false;
    bool down = false;
    for (const ifaddrs *i = all; i; i = i->ifa_next) {
      if (!i->ifa_addr || i->ifa_addr->sa_family != own.family()) continue;
      const socklen_t length = own.family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (!own.same_host(Address(reinterpret_cast<const sockaddr *>(i->ifa_addr), length))) continue;
      down = (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & kLowerUp) == 0;
    }
    ::freeifaddrs(all);
    return down;
  } catch (const std::exception &) { return false; }
}

int begin_connect_tcp(const Address &address, UniqueFd &out) {
  UniqueFd fd = new_socket(address.family());
  if (!fd) return errno;
  prepare(fd.get());
  if (::connect(fd.get(), address.raw(), address.length()) != 0 && errno != EINPROGRESS) return errno;
  out = std::move(fd);
  return 0;
}

int end_connect_tcp(const Address &address, int fd) {
  int error = 0;
  socklen_t n = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0) return errno;
  if (error != 0) return error;
  // Where nobody listens at a port of the ephemeral range, TCP may connect a socket to itself.
  const Address self = local_address(fd);
  return self.port() == address.port() && self.same_host(address) ? ECONNREFUSED : 0;
}

int connect_tcp(const Address &address, Deadline deadline, UniqueFd &out) {
  UniqueFd fd;
  if (const int error = begin_connect_tcp(address, fd); error != 0) return error;
  if (wait_events(fd.get(), POLLOUT, deadline) == 0) return ETIMEDOUT;
  const int error = end_connect_tcp(address, fd.get());
  if (error == 0) out = std::move(fd);
  return error;
}

int connect_unix(const std::string &name, Deadline deadline, UniqueFd &out) {
  socklen_t length = 0;
  const sockaddr_un a = unix_address(name, length);
  UniqueFd fd = new_socket(AF_UNIX);
  if (!fd) return errno;
  while (::connect(fd.get(), reinterpret_cast<const sockaddr *>(&a), length) != 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return errno;
    if (deadline.passed()) return ETIMEDOUT;  // EAGAIN: the backlog is full, and poll() does not tell when there is room
    sleep_until(Deadline(1e-3));
  }
  out = std::move(fd);
  return 0;
}

UniqueFd accept_client(int listener, std::string &from, int &error) {
  sockaddr_storage s{};
  socklen_t n = sizeof s;
  UniqueFd fd(::accept4(listener, reinterpret_cast<sockaddr *>(&s), &n, SOCK_CLOEXEC | SOCK_NONBLOCK));
  error = fd ? 0 : errno;
  if (!fd) {
    if (again(error) || error == ECONNABORTED) error = 0;
    return fd;
  }
  close_in_child(fd.get());
  if (s.ss_family == AF_UNIX) {
    Credentials c;
    from = peer_credentials(fd.get(), c) ? formatted("process {} of user {} on this host", c.pid, c.uid)
                                         : "a process on this host";
  } else {
    prepare(fd.get());
    from = Address(reinterpret_cast<const sockaddr *>(&s), n).text();
  }
  return fd;
}

ssize_t send_some(int fd, std::span<const std::byte> bytes) noexcept {
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return n < 0 && again(errno) ? 0 : n;
}

ssize_t recv_some(int fd, std::span<std::byte> bytes) noexcept {
  for (;;) {
    const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n >= 0 || errno != EINTR) return n;
  }
}

Io send_all(int fd, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = send_some(fd, bytes);
    if (n < 0) return errno == EPIPE || errno == ECONNRESET ? Io::Closed : Io::Failed;
    bytes = bytes.subspan(static_cast<size_t>(n));
    if (n == 0 && wait_events(fd, POLLOUT, deadline) == 0) return Io::Timeout;
  }
  return Io::Ok;
}

Io recv_exact(int fd, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t n = recv_some(fd, bytes);
    if (n == 0) return Io::Closed;
    if (n > 0) {
      bytes = bytes.subspan(static_cast<size_t>(n));
      continue;
    }
    if (errno == ECONNRESET) return Io::Closed;
    if (!again(errno)) return Io::Failed;
    if (wait_events(fd, POLLIN, deadline) == 0) return Io::Timeout;
  }
  return Io::Ok;
}

Io send_with_fd(int fd, std::span<const std::byte> bytes, int passed, Deadline deadline) {
  if (passed < 0) return send_all(fd, bytes, deadline);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec io{const_cast<std::byte *>(bytes.data()), bytes.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  cmsghdr *c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(c), &passed, sizeof passed);
  for (;;) {
    const ssize_t n = ::sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    // The descriptor went with the first byte.
    if (n >= 0) return send_all(fd, bytes.subspan(static_cast<size_t>(n)), deadline);
    if (!again(errno)) return errno == EPIPE || errno == ECONNRESET ? Io::Closed : Io::Failed;
    if (wait_events(fd, POLLOUT, deadline) == 0) return Io::Timeout;
  }
}

ssize_t recv_with_fd(int fd, std::span<std::byte> bytes, UniqueFd &passed) noexcept {
  constexpr size_t kMost = 8;  // a peer of ours sends one; there is room for more, so all can be closed
  alignas(cmsghdr) char control[CMSG_SPACE(kMost * sizeof(int))];
  iovec io{bytes.data(), bytes.size()};
  msghdr m{};
  m.msg_iov = &io;
  m.msg_iovlen = 1;
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  ssize_t n = 0;
  do n = ::recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n < 0) return n;
  for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= c->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int got = -1;
      std::memcpy(&got, CMSG_DATA(c) + at, sizeof got);
      UniqueFd owned(got);
      if (passed) continue;
      close_in_child(got);
      passed = std::move(owned);
    }
  }
  return n;
}

bool peer_credentials(int fd, Credentials &out) noexcept {
  ucred c{};
  socklen_t n = sizeof c;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) != 0) return false;
  out = {c.pid, c.uid};
  return true;
}

UniqueFd peer_pidfd(int fd) noexcept {
  int got = -1;
  socklen_t n = sizeof got;
  // The socket itself gives the pidfd where the kernel can: then no other process can have taken the number meanwhile.
  if (::getsockopt(fd, SOL_SOCKET, kSoPeerPidfd, &got, &n) == 0 && got >= 0) return UniqueFd(got);
  Credentials c;
  if (!peer_credentials(fd, c) || c.pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(kSysPidfdOpen, c.pid, 0)));
}

}  // namespace isthmus::net
