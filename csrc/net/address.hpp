// Socket addresses, and the addresses of this host at which a process listens.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

#include "net/protocol.hpp"

namespace isthmus::net {

class Address {  // IPv4 or IPv6, with a port
 public:
  Address() = default;
  Address(const sockaddr *raw, socklen_t length) noexcept;
  const sockaddr *raw() const noexcept { return reinterpret_cast<const sockaddr *>(&storage_); }
  socklen_t length() const noexcept { return length_; }
  int family() const noexcept { return storage_.ss_family; }
  uint16_t port() const noexcept;
  Address with_port(uint16_t port) const noexcept;
  std::string host() const;  // "127.0.0.1", "fe80::1%eth0"
  std::string text() const;  // "127.0.0.1:80", "[::1]:80"
  bool loopback() const noexcept;
  bool wildcard() const noexcept;
  bool link_local() const noexcept;
  bool same_host(const Address &other) const;  // whether the two are equal but for the port

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

struct HostPort {
  std::string host;
  uint16_t port = 0;
};
HostPort split_host_port(std::string_view text);  // "host:port", "[::1]:port"; throws Error(Argument)
// "127.0.0.1:80", "[::1]:80". Never asks a resolver. Throws Error(Argument).
Address numeric_address(std::string_view text);
std::vector<Address> resolve(const std::string &host, uint16_t port);  // never empty; throws Error(System), Error(Argument)

inline constexpr size_t kMostAddresses = 8;  // of one host

// The addresses of this host (port 0) that peers can reach: at most kMostAddresses, best first. The first of these that is given decides:
//   1. `interface` (ISTHMUS_INTERFACE): names of interfaces and addresses, separated by commas. Names that this host lacks are left out.
//   2. `route_hint` ("host" or "host:port"): the interface that routes to that host.
//   3. The default route, and behind it all interfaces that are up, IPv4 first. Bridges of containers and virtual machines are left out,
//      because their addresses are alike on all hosts. Where nothing is left: loopback.
// Throws Error(Config) that names the interfaces there are, where none of `interface` is one.
std::vector<Address> local_addresses(const std::string &interface, const std::string &route_hint);

// The name of the interface of this host that has the address ("10.0.0.1:80", "[fe80::1%eth0]:80"). Empty: no interface that is up has
// the address.
std::string interface_of(std::string_view address);

// The rate of an interface as its driver says it, in megabits a second; 0: it does not say, or there is no such interface. A label ("eth0:1") is its
// interface's. `under`: where the kernel lists the interfaces.
uint32_t rate_of(const std::string &interface, const std::string &under = "/sys/class/net");

}  // namespace isthmus::net
