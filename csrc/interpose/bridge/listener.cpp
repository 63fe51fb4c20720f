#include "listener.hpp"

#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>

namespace isthmus::bridge {
namespace {

constexpr size_t kPlaces[] = {8, 0};  // of the address in an id

bool listens(int fd) {
  int on = 0;
  socklen_t size = sizeof on;
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &size) == 0 && on != 0;
}

// Where a socket listens, or an id sends its ranks.
struct RootPlace {
  sa_family_t family = AF_UNSPEC;
  in_port_t port = 0;
  in6_addr host{};  // of IPv4 the first four bytes
};

RootPlace read_place(std::span<const unsigned char> bytes) {
  RootPlace p;
  sockaddr_in four;
  sockaddr_in6 six;
  if (bytes.size() < sizeof four) return p;
  std::memcpy(&four, bytes.data(), sizeof four);
  if (four.sin_family == AF_INET) {
    p = {four.sin_family, four.sin_port, {}};
    std::memcpy(&p.host, &four.sin_addr, sizeof four.sin_addr);
  } else if (four.sin_family == AF_INET6 && bytes.size() >= sizeof six) {
    std::memcpy(&six, bytes.data(), sizeof six);
    p = {six.sin6_family, six.sin6_port, six.sin6_addr};
  }
  return p;
}

// Whether who connects to `named` comes to a socket that listens at `at`.
bool leads_to(const RootPlace &named, const RootPlace &at) {
  const auto host = [&](const in6_addr &a) { return std::memcmp(&at.host, &a, sizeof a) == 0; };
  return at.family != AF_UNSPEC && named.family == at.family && named.port == at.port && (host(named.host) || host({}));
}

// Whether it is a listening socket to which the id sends its ranks.
bool is_of(int fd, std::span<const unsigned char> id) {
  sockaddr_storage at{};
  socklen_t size = sizeof at;
  if (!listens(fd) || ::getsockname(fd, reinterpret_cast<sockaddr *>(&at), &size) != 0) return false;
  const RootPlace here = read_place({reinterpret_cast<const unsigned char *>(&at), sizeof at});
  return std::any_of(std::begin(kPlaces), std::end(kPlaces),
                     [&](size_t place) { return place < id.size() && leads_to(read_place(id.subspan(place)), here); });
}

// A new descriptor is the lowest that is free. So that of the next id mostly follows soon, and a program with thousands of
// descriptors need not look at all of them for each id.
constexpr int kNear = 16;
std::atomic<int> last_found{0};

}  // namespace

int listener_of(std::span<const unsigned char> id) {
  const int last = last_found.load(std::memory_order_relaxed);
  int found = -1;
  for (int fd = std::max(last - kNear, 0); fd <= last + kNear && found < 0; ++fd)
    if (is_of(fd, id)) found = fd;
  const std::unique_ptr<DIR, int (*)(DIR *)> all(found < 0 ? ::opendir("/proc/self/fd") : nullptr,
                                                 [](DIR *d) { return ::closedir(d); });
  while (const dirent *entry = all && found < 0 ? ::readdir(all.get()) : nullptr)
    if (entry->d_name[0] != '.' && is_of(std::atoi(entry->d_name), id)) found = std::atoi(entry->d_name);
  if (found >= 0) last_found.store(found, std::memory_order_relaxed);
  return found;
}

}  // namespace isthmus::bridge
