#include "bootstrap/ticket_wire.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "net/siphash.hpp"
#include "net/wire.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint32_t kTicketMagic = 0x544b5449;  // "ITKT"
constexpr size_t kBody = kTicketBytes - 8;     // behind the body stands a checksum
constexpr size_t kTicketHead = 28;             // in front of the addresses
constexpr size_t kMostListed = 8;              // for so many there is a bit each; the room ends before

uint64_t checksum(std::span<const std::byte> body) {
  const Bytes16 h = net::siphash128({}, body);
  return net::Reader(std::as_bytes(std::span(h))).number<uint64_t>();
}

std::span<const std::byte> host_bytes(const net::Address &a) {
  if (a.family() == AF_INET) return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in *>(a.raw())->sin_addr, 1));
  return std::as_bytes(std::span(&reinterpret_cast<const sockaddr_in6 *>(a.raw())->sin6_addr, 1));
}

net::Address read_address(net::Reader &r, bool v6) {
  const uint16_t port = r.number<uint16_t>();
  sockaddr_in four{};
  sockaddr_in6 six{};
  four.sin_family = AF_INET;
  six.sin6_family = AF_INET6;
  auto *at = v6 ? reinterpret_cast<uint8_t *>(&six.sin6_addr) : reinterpret_cast<uint8_t *>(&four.sin_addr);
  for (int b = 0; b < (v6 ? 16 : 4); ++b) at[b] = r.number<uint8_t>();
  const net::Address a = v6 ? net::Address(reinterpret_cast<const sockaddr *>(&six), sizeof six)
                            : net::Address(reinterpret_cast<const sockaddr *>(&four), sizeof four);
  return a.with_port(port);
}

// Whether what is left of the body is zeros, as pack_ticket() writes them.
bool only_zeros(std::span<const std::byte> rest) {
  return std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

void seal_ticket(std::span<std::byte, kTicketBytes> bytes) {
  net::ByteVector sum;
  net::Writer(sum).number(checksum(bytes.first(kBody)));
  std::copy(sum.begin(), sum.end(), bytes.begin() + kBody);
}

size_t pack_ticket(const Ticket &ticket, std::span<std::byte, kTicketBytes> out) {
  net::ByteVector list;
  size_t count = 0;
  uint8_t sixes = 0;
  for (const net::Address &a : ticket.addresses) {
    const std::span<const std::byte> host = host_bytes(a);
    if (count == kMostListed || list.size() + 2 + host.size() > kBody - kTicketHead) continue;
    if (a.family() == AF_INET6) sixes = static_cast<uint8_t>(sixes | 1u << count);
    net::Writer(list).number(a.port()).bytes(host);
    ++count;
  }
  net::ByteVector body;
  net::Writer(body)
      .number(kTicketMagic)
      .number(net::kProtocolVersion)
      .number(static_cast<uint8_t>(count))
      .number(sixes)
      .number(ticket.number)
      .bytes16(ticket.key)
      .bytes(list);
  body.resize(kTicketBytes);
  std::copy(body.begin(), body.end(), out.begin());
  seal_ticket(out);
  return count;
}

Ticket unpack_ticket(std::span<const std::byte, kTicketBytes> bytes) {
  net::Reader r(bytes.first(kBody));
  const bool magic = r.number<uint32_t>() == kTicketMagic;
  const uint16_t version = r.number<uint16_t>();
  if (magic && version != net::kProtocolVersion)
    fail(Code::Mismatch, "the ticket was made for {}", net::version_text(version, net::kProtocolVersion));
  const size_t count = r.number<uint8_t>();
  const unsigned sixes = r.number<uint8_t>();
  Ticket t;
  t.number = r.number<uint32_t>();
  t.key = r.bytes16();
  bool sound = magic && count >= 1 && count <= kMostListed && sixes >> count == 0 &&
               net::Reader(bytes.subspan(kBody)).number<uint64_t>() == checksum(bytes.first(kBody));
  for (size_t i = 0; sound && i < count && r.ok(); ++i) {
    t.addresses.push_back(read_address(r, (sixes >> i & 1u) != 0));
    sound = t.addresses.back().port() != 0;
  }
  if (!sound || !r.ok() || !only_zeros(r.rest()))
    fail(Code::Argument, "this is not a ticket: pass the {} bytes of isthmus_meeting_create on, unchanged, to every rank",
         kTicketBytes);
  return t;
}

}  // namespace isthmus::bootstrap
