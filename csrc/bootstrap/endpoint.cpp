#include <sys/stat.h>

#include <algorithm>

#include "base/error.hpp"
#include "base/small_file.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/mesh.hpp"
#include "net/siphash.hpp"
#include "net/wire.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint32_t kEndpointMagic = 0x50455349;  // "ISEP"
constexpr size_t kMaxHostname = 255, kMaxUnixName = 107, kMaxTcp = 16, kMaxTcpText = 128;
constexpr uint32_t kMaxDelayUs = 1'000'000;

}  // namespace

Bytes16 random_bytes16() { return net::random16(); }

Bytes16 host_identity() {
  std::string parts = read_small_file("/proc/sys/kernel/random/boot_id");
  if (parts.empty()) return net::random16();  // no identity: the host nominates nobody, and TCP reaches everybody
  // Abstract Unix sockets live in a network namespace. So a container with a namespace of its own counts as a host of its own.
  struct stat s {};
  if (::stat("/proc/self/ns/net", &s) == 0) parts += formatted(" {} {}", s.st_dev, s.st_ino);
  return net::siphash128({}, std::as_bytes(std::span(parts)));
}

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] ? name : "unnamed";
}

int Endpoint::ways_to(const Endpoint &other) const noexcept {
  // An interface often has an address of either family, so the families are not added up. IPv4 comes first, as among the addresses.
  const auto of_ipv6 = [](const std::string &text) { return text.starts_with('['); };
  const auto both = [&](bool ipv6) {
    const auto count = [&](const Endpoint &e) {
      return std::count_if(e.tcp.begin(), e.tcp.end(), [&](const std::string &text) { return of_ipv6(text) == ipv6; });
    };
    return static_cast<int>(std::min(count(*this), count(other)));
  };
  const int ipv4 = both(false);
  return std::clamp(ipv4 != 0 ? ipv4 : both(true), 1, kMostStreams);
}

std::vector<std::byte> Endpoint::pack() const {
  std::vector<std::byte> out;
  net::Writer w(out);
  w.number(kEndpointMagic).bytes16(process).bytes16(host).number(pid).number(delay_us).number(rate);
  w.text(hostname.substr(0, kMaxHostname)).text(unix_name).number(static_cast<uint8_t>(std::min(tcp.size(), kMaxTcp)));
  for (size_t i = 0; i < tcp.size() && i < kMaxTcp; ++i) w.text(tcp[i]);
  return out;
}

Endpoint Endpoint::unpack(std::span<const std::byte> bytes) {
  net::Reader r(bytes);
  Endpoint e;
  const bool magic = r.number<uint32_t>() == kEndpointMagic;
  e.process = r.bytes16();
  e.host = r.bytes16();
  e.pid = r.number<int64_t>();
  e.delay_us = r.number<uint32_t>();
  e.rate = r.number<uint32_t>();
  e.hostname = r.text(kMaxHostname);
  e.unix_name = r.text(kMaxUnixName);
  const size_t n = r.number<uint8_t>();
  for (size_t i = 0; i < n && n <= kMaxTcp && r.ok(); ++i) e.tcp.push_back(r.text(kMaxTcpText));
  if (!magic || n > kMaxTcp || !r.done() || e.pid < 0 || e.delay_us > kMaxDelayUs)
    fail(Code::Mismatch, "a malformed endpoint of {} bytes; do all ranks run the same version of Isthmus?", bytes.size());
  return e;
}

}  // namespace isthmus::bootstrap
