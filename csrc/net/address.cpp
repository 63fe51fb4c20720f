#include "net/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "base/handles.hpp"
#include "base/small_file.hpp"

namespace isthmus::net {
namespace {

const sockaddr_in &v4(const Address &a) noexcept { return *reinterpret_cast<const sockaddr_in *>(a.raw()); }
const sockaddr_in6 &v6(const Address &a) noexcept { return *reinterpret_cast<const sockaddr_in6 *>(a.raw()); }

std::vector<Address> lookup(const std::string &host, uint16_t port, int flags, int &error) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo *found = nullptr;
  error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<Address> out;
  for (const addrinfo *a = found; a; a = a->ai_next)
    if (a->ai_family == AF_INET || a->ai_family == AF_INET6) out.emplace_back(a->ai_addr, a->ai_addrlen);
  if (out.empty()) error = EAI_NONAME;
  return out;
}

// The local address from which this host reaches `target`. Connecting a datagram socket sends nothing.
bool source_address(const Address &target, Address &out) {
  const UniqueFd fd(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd && system_code(errno) == Code::Resource) fail_system("a socket", errno);  // else the host has no such family
  const Address probe = target.with_port(9);
  if (!fd || ::connect(fd.get(), probe.raw(), probe.length()) != 0) return false;
  sockaddr_storage s{};
  socklen_t n = sizeof s;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr *>(&s), &n) != 0) return false;
  out = Address(reinterpret_cast<const sockaddr *>(&s), n).with_port(0);
  return !out.wildcard();
}

struct Interface {
  std::string name;
  Address address;
  bool loopback = false;

  // A bridge of containers or virtual machines, or one end of a container's cable.
  bool of_containers() const noexcept {
    constexpr std::string_view kNames[] = {"docker",  "podman", "virbr",  "veth", "cni",
                                           "flannel", "cali",   "cilium", "lxc",  "lxd"};
    const bool dockers =
        name.size() == 15 && name.starts_with("br-") && name.find_first_not_of("0123456789abcdef", 3) == std::string::npos;
    return dockers ||
           std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view n) { return name.starts_with(n); });
  }
};

std::vector<Interface> interfaces() {
  ifaddrs *found = nullptr;
  if (::getifaddrs(&found) != 0) fail_system("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(found, &::freeifaddrs);
  std::vector<Interface> out;
  for (const ifaddrs *i = found; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_UP)) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const Address address(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    out.push_back({i->ifa_name, address, (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return out;
}

void add_new(std::vector<Address> &out, const Address &a) {
  if (std::none_of(out.begin(), out.end(), [&](const Address &b) { return b.same_host(a); })) out.push_back(a);
}

// Of one name or address. Empty: this host has none such that is up.
std::vector<Address> of_interface(const std::string &interface, const std::vector<Interface> &all) {
  std::vector<Address> out;
  int error = 0;
  const auto literal = lookup(interface, 0, AI_NUMERICHOST, error);
  for (const auto &i : all)
    if (i.name == interface || (!literal.empty() && i.address.same_host(literal[0]))) out.push_back(i.address);
  std::stable_sort(out.begin(), out.end(), [](const Address &a, const Address &b) {  // global before link-local, IPv4 first
    const auto cost = [](const Address &x) { return (x.link_local() ? 2 : 0) + (x.family() == AF_INET6 ? 1 : 0); };
    return cost(a) < cost(b);
  });
  if (literal.empty() && std::any_of(out.begin(), out.end(), [](const Address &a) { return !a.link_local(); }))
    std::erase_if(out, [](const Address &a) { return a.link_local(); });
  return out;
}

std::vector<Address> of_interfaces(const std::string &names) {
  const auto all = interfaces();
  std::vector<Address> out;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    if (end > at)
      for (const Address &a : of_interface(names.substr(at, end - at), all)) add_new(out, a);
    at = end + 1;
  }
  // Beside others a link-local address says little, unless it is named itself.
  if (std::any_of(out.begin(), out.end(), [](const Address &a) { return !a.link_local(); }))
    std::erase_if(out, [&](const Address &a) { return a.link_local() && names.find(a.host()) == std::string::npos; });
  if (!out.empty()) return out;
  std::string list;
  for (const auto &i : all) list += formatted("{}{} ({})", list.empty() ? "" : ", ", i.name, i.address.host());
  fail(Code::Config, "ISTHMUS_INTERFACE={}: this host has no such interface or address that is up; it has {}", names,
       list.empty() ? "none" : list);
}

// Those that lead to the hint.
std::vector<Address> on_route_to(const std::string &hint) {
  int error = 0;
  auto targets = lookup(hint, 0, AI_NUMERICHOST, error);  // a bare IPv6 address has colons as well
  if (targets.empty()) {
    const bool with_port = hint.find(':') != std::string::npos;
    targets = resolve(with_port ? split_host_port(hint).host : hint, 0);
  }
  std::vector<Address> out;
  Address source;
  for (const Address &t : targets)
    if (source_address(t, source)) add_new(out, source);
  if (out.empty()) fail(Code::Config, "no route from this host to {}; check the address, or set ISTHMUS_INTERFACE", hint);
  return out;
}

std::vector<Address> everywhere() {
  std::vector<Address> out;
  Address source;
  for (const char *anywhere :
       {"192.0.2.1:9", "[2001:db8::1]:9"})  // networks for documentation: only the default route leads there
    if (source_address(numeric_address(anywhere), source)) add_new(out, source);
  const auto all = interfaces();
  const auto add = [&](bool of_containers) {
    for (const int family : {AF_INET, AF_INET6})
      for (const Interface &i : all)
        if (i.address.family() == family && !i.loopback && !i.address.link_local() && i.of_containers() == of_containers)
          add_new(out, i.address);
  };
  add(false);
  if (out.empty()) add(true);
  if (out.empty()) out.push_back(numeric_address("127.0.0.1:9").with_port(0));
  return out;
}

}  // namespace

Address::Address(const sockaddr *raw, socklen_t length) noexcept : length_(std::min<socklen_t>(length, sizeof storage_)) {
  std::memcpy(&storage_, raw, length_);
}

uint16_t Address::port() const noexcept {
  return family() == AF_INET ? ntohs(v4(*this).sin_port) : family() == AF_INET6 ? ntohs(v6(*this).sin6_port) : uint16_t{0};
}

Address Address::with_port(uint16_t port) const noexcept {
  Address a = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in *>(&a.storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6 *>(&a.storage_)->sin6_port = htons(port);
  return a;
}

std::string Address::host() const {
  char name[NI_MAXHOST];
  if (length_ == 0 || ::getnameinfo(raw(), length_, name, sizeof name, nullptr, 0, NI_NUMERICHOST) != 0) return "?";
  return name;
}

std::string Address::text() const {
  return family() == AF_INET6 ? formatted("[{}]:{}", host(), port()) : formatted("{}:{}", host(), port());
}

bool Address::loopback() const noexcept {
  return family() == AF_INET ? (ntohl(v4(*this).sin_addr.s_addr) >> 24) == 127
                             : family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6(*this).sin6_addr);
}

bool Address::wildcard() const noexcept {
  return family() == AF_INET ? v4(*this).sin_addr.s_addr == htonl(INADDR_ANY)
                             : family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6(*this).sin6_addr);
}

bool Address::link_local() const noexcept {
  return family() == AF_INET ? (ntohl(v4(*this).sin_addr.s_addr) >> 16) == 0xa9fe
                             : family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(*this).sin6_addr);
}

bool Address::same_host(const Address &other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) return v4(*this).sin_addr.s_addr == v4(other).sin_addr.s_addr;
  return std::memcmp(&v6(*this).sin6_addr, &v6(other).sin6_addr, sizeof(in6_addr)) == 0 &&
         (v6(*this).sin6_scope_id == v6(other).sin6_scope_id || !link_local());
}

HostPort split_host_port(std::string_view text) {
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == std::string_view::npos ? 0 : colon);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  unsigned port = 0;
  const char *last = text.data() + text.size();
  const char *first = colon == std::string_view::npos ? last : text.data() + colon + 1;
  const auto [end, error] = std::from_chars(first, last, port);
  if (host.empty() || host.size() > 255 || (!bracketed && host.find(':') != std::string_view::npos) ||
      error != std::errc{} || end != last || port == 0 || port > 65535)
    fail(Code::Argument,
         "address '{}': expected host:port with a port from 1 to 65535, an IPv6 address in brackets, as in "
         "10.0.0.1:29501 or [::1]:29501",
         text.substr(0, 300));
  return {std::string(host), static_cast<uint16_t>(port)};
}

Address numeric_address(std::string_view text) {
  const HostPort hp = split_host_port(text);
  int error = 0;
  const auto found = lookup(hp.host, hp.port, AI_NUMERICHOST, error);
  if (found.empty()) fail(Code::Argument, "address '{}': {} is not a numeric address", text, hp.host);
  return found[0];
}

std::vector<Address> resolve(const std::string &host, uint16_t port) {
  int error = 0;
  auto found = lookup(host, port, AI_NUMERICHOST, error);
  if (found.empty()) found = lookup(host, port, 0, error);
  if (found.empty())
    fail(Code::System, "cannot resolve the host name '{}': {}; check its spelling, or give a numeric address", host,
         ::gai_strerror(error));
  return found;
}

std::vector<Address> local_addresses(const std::string &interface, const std::string &route_hint) {
  std::vector<Address> out = !interface.empty()    ? of_interfaces(interface)
                             : !route_hint.empty() ? on_route_to(route_hint)
                                                   : everywhere();
  if (out.size() > kMostAddresses) out.resize(kMostAddresses);
  return out;
}

std::string interface_of(std::string_view address) {
  const Address wanted = numeric_address(address);
  for (const Interface &i : interfaces())
    if (i.address.same_host(wanted)) return i.name;
  return {};
}

uint32_t rate_of(const std::string &interface, const std::string &under) {
  const std::string name = interface.substr(0, interface.find(':'));
  if (name.empty() || name.find('/') != std::string::npos) return 0;
  const std::string said =
      read_small_file((under + "/" + name + "/speed").c_str());  // cannot be read where the interface is down
  int32_t rate = 0;
  const auto [end, error] = std::from_chars(said.data(), said.data() + said.size(), rate);
  return error == std::errc{} && rate > 0 ? static_cast<uint32_t>(rate) : 0;
}

}  // namespace isthmus::net
