#include "bootstrap/rendezvous_wire.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/one_line.hpp"
#include "net/address.hpp"
#include "net/siphash.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr uint64_t kIdMagic = 0x44495355'4d485349;  // "ISHMUSID"
constexpr size_t kMaxFailureText = 8192, kMaxGiveUpText = 1024, kIdBody = 120;

uint64_t id_checksum(std::span<const std::byte> body) {
  const Bytes16 h = net::siphash128({}, body);
  return net::Reader(std::as_bytes(std::span(h))).number<uint64_t>();
}

void append(net::ByteVector &out, Meet type, std::span<const std::byte> head, std::span<const std::byte> blob) {
  const auto h = net::frame_header(static_cast<uint16_t>(type), head.size() + blob.size());
  net::Writer(out).bytes(h).bytes(head).bytes(blob);
}

}  // namespace

void append_join(net::ByteVector &out, const Join &m) {
  net::ByteVector body;
  net::Writer(body).number(m.pid).text(m.hostname.substr(0, 255));
  append(out, Meet::Join, body, {});
}

void append_contribution(net::ByteVector &out, uint32_t round, std::span<const std::byte> blob, Patience patience) {
  net::ByteVector head;
  net::Writer(head).number(round).number(patience.alike).number(patience.ns);
  append(out, Meet::Contribution, head, blob);
}

void append_give_up(net::ByteVector &out, uint32_t round, const Status &why) {
  net::ByteVector body;
  net::Writer(body).number(round).number(static_cast<uint16_t>(why.code)).text(head_of(why.text, kMaxGiveUpText));
  append(out, Meet::GiveUp, body, {});
}

void append_result(net::ByteVector &out, uint32_t round, uint32_t rank, std::span<const std::byte> blob) {
  net::ByteVector head;
  net::Writer(head).number(round).number(rank);
  append(out, Meet::Result, head, blob);
}

void append_failure(net::ByteVector &out, const Status &status) {
  net::ByteVector body;
  net::Writer(body).number(static_cast<uint16_t>(status.code)).text(head_of(status.text, kMaxFailureText));
  append(out, Meet::Failure, body, {});
}

std::optional<Join> parse_join(std::span<const std::byte> body) {
  net::Reader r(body);
  Join m;
  m.pid = r.number<int64_t>();
  m.hostname = r.text(255);
  if (!r.done()) return {};
  return m;
}

std::optional<Contribution> parse_contribution(std::span<const std::byte> body) {
  net::Reader r(body);
  Contribution m;
  m.round = r.number<uint32_t>();
  m.patience.alike = r.number<uint32_t>();
  m.patience.ns = r.number<int64_t>();
  m.blob = r.rest();
  if (!r.ok() || m.blob.size() > kMaxBlob || m.patience.alike > m.blob.size() || m.patience.ns < 0) return {};
  return m;
}

std::optional<GiveUp> parse_give_up(std::span<const std::byte> body) {
  net::Reader r(body);
  GiveUp m;
  m.round = r.number<uint32_t>();
  const int code = r.number<uint16_t>();
  m.why = {static_cast<Code>(code), r.text(kMaxGiveUpText)};
  if (!r.done() || code > static_cast<int>(kLastCode)) return {};
  return m;
}

std::optional<Result> parse_result(std::span<const std::byte> body) {
  net::Reader r(body);
  Result m;
  m.round = r.number<uint32_t>();
  m.rank = r.number<uint32_t>();
  m.blob = r.rest();
  if (!r.ok() || m.blob.size() > kMaxBlob) return {};
  return m;
}

std::optional<Status> parse_failure(std::span<const std::byte> body) {
  net::Reader r(body);
  const int code = r.number<uint16_t>();
  Status m{static_cast<Code>(code), r.text(kMaxFailureText)};
  if (!r.done() || code <= static_cast<int>(Code::Ok) || code > static_cast<int>(kLastCode)) return {};
  return m;
}

void pack_unique_id(const UniqueId &id, std::span<std::byte, 128> out) {
  if (id.addresses.empty() || id.addresses.size() > kMaxIdAddresses)
    fail(Code::Argument, "a unique id holds 1 to {} addresses, not {}", kMaxIdAddresses, id.addresses.size());
  net::ByteVector body;
  net::Writer w(body);
  w.number(kIdMagic).number(net::kProtocolVersion).number(static_cast<uint16_t>(id.addresses.size())).bytes16(id.key);
  for (const std::string &text : id.addresses) {
    const net::Address a = net::numeric_address(text);
    Bytes16 raw{};
    if (a.family() == AF_INET) std::memcpy(raw.data(), &reinterpret_cast<const sockaddr_in *>(a.raw())->sin_addr, 4);
    else std::memcpy(raw.data(), &reinterpret_cast<const sockaddr_in6 *>(a.raw())->sin6_addr, 16);
    w.number(static_cast<uint8_t>(a.family() == AF_INET ? 4 : 6)).number(a.port()).bytes16(raw);
  }
  body.resize(kIdBody);
  net::Writer(body).number(id_checksum(std::span(body).first(kIdBody)));
  std::copy(body.begin(), body.end(), out.begin());
}

UniqueId unpack_unique_id(std::span<const std::byte, 128> bytes) {
  net::Reader r(bytes.first(kIdBody));
  const bool magic = r.number<uint64_t>() == kIdMagic;
  const uint16_t version = r.number<uint16_t>();
  if (magic && version != net::kProtocolVersion)
    fail(Code::Mismatch, "the unique id was made for {}", net::version_text(version, net::kProtocolVersion));
  const size_t count = r.number<uint16_t>();
  UniqueId id;
  id.key = r.bytes16();
  const bool sound = magic && count >= 1 && count <= kMaxIdAddresses &&
                     net::Reader(bytes.subspan(kIdBody)).number<uint64_t>() == id_checksum(bytes.first(kIdBody));
  for (size_t i = 0; sound && i < count; ++i) {
    const uint8_t family = r.number<uint8_t>();
    const uint16_t port = r.number<uint16_t>();
    const Bytes16 raw = r.bytes16();
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    v4.sin_family = AF_INET;
    v6.sin6_family = AF_INET6;
    std::memcpy(&v4.sin_addr, raw.data(), 4);
    std::memcpy(&v6.sin6_addr, raw.data(), 16);
    const net::Address a = family == 4 ? net::Address(reinterpret_cast<const sockaddr *>(&v4), sizeof v4)
                                       : net::Address(reinterpret_cast<const sockaddr *>(&v6), sizeof v6);
    id.addresses.push_back(a.with_port(port).text());
  }
  if (!sound)
    fail(Code::Argument,
         "this is not a unique id: pass the 128 bytes of isthmus_unique_id_create on, unchanged, to every rank");
  return id;
}

std::string ranks_text(const std::vector<int> &ranks) {
  constexpr size_t kNamed = 8;
  std::string out;
  const size_t named = std::min(ranks.size(), kNamed);
  for (size_t i = 0; i < named; ++i) {
    const bool last = i + 1 == named && ranks.size() == named;
    out += formatted("{}rank {}", i == 0 ? "" : last ? " and " : ", ", ranks[i]);
  }
  if (ranks.size() > named) out += formatted(" and {} more", ranks.size() - named);
  return out;
}

}  // namespace isthmus::bootstrap
