#include "core/root.hpp"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/rendezvous.hpp"

namespace rehearsal {
namespace {

struct Greeting {
  uint64_t magic = 0x544f4f52'41525345;
  int32_t rank = 0, size = 0;
};

constexpr timeval kPatience{5, 0};  // with who connects and says nothing, and with who does not listen

void hear(int listener) {
  for (int heard = 0, size = 1; heard < size;) {
    const int s = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (s < 0 && errno != EINTR && errno != ECONNABORTED) break;
    Greeting g;
    ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience);
    if (s >= 0 && ::recv(s, &g, sizeof g, MSG_WAITALL) == static_cast<ssize_t>(sizeof g) && g.magic == Greeting{}.magic) {
      size = g.size;
      ++heard;
    }
    if (s >= 0) ::close(s);
  }
  ::close(listener);
}

socklen_t length_of(sa_family_t family) { return family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

}  // namespace

bool open_root(RootAddress *root) {
  const char *wanted = std::getenv("NCCL_SOCKET_FAMILY");
  const bool six = wanted && std::strcmp(wanted, "AF_INET6") == 0;
  sockaddr_storage at{};
  at.ss_family = six ? AF_INET6 : AF_INET;
  if (six) reinterpret_cast<sockaddr_in6 *>(&at)->sin6_addr = in6addr_loopback;
  else reinterpret_cast<sockaddr_in *>(&at)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = length_of(at.ss_family);
  auto *const address = reinterpret_cast<sockaddr *>(&at);
  const int listener = meeting_socket(at.ss_family);
  if (listener < 0) return false;
  if (::bind(listener, address, length) != 0 || ::listen(listener, 1024) != 0 ||
      ::getsockname(listener, address, &length) != 0) {
    ::close(listener);
    return false;
  }
  *root = {};
  std::memcpy(root->data(), &at, length);
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(hear, listener).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

bool greet_root(const RootAddress &root, int rank, int size) {
  sockaddr_storage at{};
  std::memcpy(&at, root.data(), root.size());
  if (at.ss_family == AF_UNSPEC) return true;
  const int s = meeting_socket(at.ss_family);
  if (s < 0) return false;
  ::setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience);
  const Greeting g{Greeting{}.magic, rank, size};
  const bool heard = ::connect(s, reinterpret_cast<const sockaddr *>(&at), length_of(at.ss_family)) == 0 &&
                     ::send(s, &g, sizeof g, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof g);
  ::close(s);
  return heard;
}

}  // namespace rehearsal
