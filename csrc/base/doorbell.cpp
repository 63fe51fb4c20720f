#include "base/doorbell.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/error.hpp"
#include "base/fork.hpp"

namespace isthmus {
namespace {

std::atomic<int> callers_socket{-1};
const InChild forgets_socket([](void *) noexcept { callers_socket.store(-1); });

constexpr char kPrefix[] = "isthmus-bell-";  // behind a null byte: an abstract name

socklen_t address_of(const char *name, sockaddr_un &out) noexcept {
  out = {};
  out.sun_family = AF_UNIX;
  std::memcpy(out.sun_path + 1, kPrefix, sizeof kPrefix - 1);
  std::memcpy(out.sun_path + sizeof kPrefix, name, Doorbell::kName);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + sizeof kPrefix + Doorbell::kName);
}

}  // namespace

void Doorbell::call() noexcept {
  sockaddr_un to;
  const socklen_t bytes = address_of(name, to);
  const int from = callers_socket.load(std::memory_order_acquire);
  // A full queue wakes them as well. Whatever else it is, the next to ring is to try again.
  if (from < 0 || ::sendto(from, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr *>(&to), bytes) < 0)
    called.store(0, std::memory_order_release);
}

BellSocket::BellSocket(Doorbell &bell)
    : bell_(bell), socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (!socket_) fail_system("socket of the doorbell", errno);
  for (size_t have = 0; have < sizeof bell.name;) {
    const ssize_t n = ::getrandom(bell.name + have, sizeof bell.name - have, 0);
    if (n < 0 && errno != EINTR) fail_system("getrandom", errno);
    if (n > 0) have += static_cast<size_t>(n);
  }
  sockaddr_un name;
  const socklen_t bytes = address_of(bell.name, name);
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr *>(&name), bytes) != 0)
    fail_system("bind of the doorbell", errno);
  callers_socket.store(socket_.get(), std::memory_order_release);
}

BellSocket::~BellSocket() {
  int mine = socket_.get();
  callers_socket.compare_exchange_strong(mine, -1, std::memory_order_acq_rel);
}

// First the datagrams, then the mark: whoever finds the mark set has been heard by what the caller of this looks at next.
void BellSocket::answer() noexcept {
  char byte;
  for (int i = 0; i < 64 && ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT) >= 0; ++i) {}
  bell_.called.exchange(0, std::memory_order_acq_rel);
}

}  // namespace isthmus
