#include "targets.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "net/address.hpp"
#include "net/frame.hpp"
#include "net/handshake.hpp"

namespace isthmus::fuzz {
namespace {

using net::ByteVector;

void must(bool holds) {
  if (!holds) std::abort();
}

std::span<const std::byte> view(const uint8_t *data, size_t size) { return std::as_bytes(std::span(data, size)); }
Bytes seed(std::span<const std::byte> b) {
  Bytes out(b.size());
  if (!b.empty()) std::memcpy(out.data(), b.data(), b.size());
  return out;
}

// The first byte chooses the pieces in which the rest arrives.
void frames(const uint8_t *data, size_t size) {
  if (size == 0) return;
  const size_t piece = data[0] + size_t{1};
  auto in = view(data + 1, size - 1);
  constexpr size_t kMax = 4096;
  net::FrameReader reader(kMax);
  size_t bytes = 0;
  ByteVector again;
  while (!in.empty()) {
    auto space = reader.space();
    must(!space.empty() && space.size() <= 2 * kMax + net::kFrameHeader);
    const size_t n = std::min({piece, in.size(), space.size()});
    std::memcpy(space.data(), in.data(), n);
    reader.received(n);
    in = in.subspan(n);
    uint16_t type = 0;
    std::span<const std::byte> body;
    net::FrameReader::Result r;
    while ((r = reader.next(type, body)) == net::FrameReader::Result::Frame) {
      must(body.size() <= kMax);
      bytes += net::kFrameHeader + body.size();
      net::append_frame(again, type, body);
    }
    must(reader.missing() >= 1 && reader.missing() <= kMax + net::kFrameHeader);
    if (r == net::FrameReader::Result::Bad) {
      must(!reader.why().empty());
      must(reader.next(type, body) == net::FrameReader::Result::Bad);
      break;
    }
  }
  must(bytes <= size - 1 && again.size() == bytes && (bytes == 0 || std::memcmp(again.data(), data + 1, bytes) == 0));
}

std::vector<Bytes> frame_seeds() {
  ByteVector v{std::byte{6}};
  net::append_frame(v, 7, net::as_bytes("hello"));
  net::append_frame(v, 0xff00, {});
  net::append_frame(v, 9, ByteVector(300));
  ByteVector large{std::byte{255}};
  net::append_frame(large, 1, ByteVector(4096));
  return {seed(v), seed(large)};
}

void handshake(const uint8_t *data, size_t size) {
  const auto in = view(data, size);
  std::string why;
  if (const auto h = net::parse_hello(in, why))
    must(size == net::kHelloBytes && net::parse_hello(net::encode(*h), why).has_value());
  else must(!why.empty());
  why.clear();
  if (!net::parse_challenge(in, why)) must(!why.empty());
  // Whatever a client sends, it is not proved.
  net::Acceptor a({1});
  ByteVector reply;
  auto rest = in;
  while (a.wants() != 0 && !rest.empty()) {
    const auto piece = rest.first(std::min(a.wants(), rest.size()));
    if (piece.size() < a.wants() && a.plausible(piece)) break;
    rest = rest.subspan(piece.size());
    a.feed(piece, reply);
  }
  must(a.state() != net::Acceptor::State::Done && !a.try_key({2}, reply));
}

std::vector<Bytes> handshake_seeds() {
  net::Hello h;
  h.role = net::Role::Data;
  h.index = 3;
  h.count = 4;
  auto hello = net::encode(h);
  auto with_proof = hello;
  net::Writer(with_proof).bytes16({5});
  return {seed(hello), seed(with_proof), seed(net::encode(net::Challenge{}))};
}

void endpoint(const uint8_t *data, size_t size) {
  try {
    const auto e = bootstrap::Endpoint::unpack(view(data, size));
    const auto packed = e.pack();
    must(packed.size() == size && std::memcmp(packed.data(), data, size) == 0);
  } catch (const Error &error) { must(error.code() == Code::Mismatch); }
}

bootstrap::Endpoint an_endpoint() { return {{1}, {2}, "host", "isthmus-1-name", {"127.0.0.1:1", "[::1]:2"}, 4711}; }
std::vector<Bytes> endpoint_seeds() { return {seed(an_endpoint().pack()), seed(bootstrap::Endpoint{}.pack())}; }

void greeting(const uint8_t *data, size_t size) {
  const auto in = view(data, size);
  if (const auto m = bootstrap::parse_intro(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_attach(in)) must(bootstrap::encode(*m).size() == size);
  if (const auto m = bootstrap::parse_ready(in)) must(bootstrap::encode(*m).size() == size);
}

std::vector<Bytes> greeting_seeds() {
  return {seed(bootstrap::encode(bootstrap::Intro{4096, an_endpoint()})),
          seed(bootstrap::encode(bootstrap::Attach{4096, {3}, "why"})), seed(bootstrap::encode(bootstrap::Ready{{4}, ""}))};
}

void rendezvous(const uint8_t *data, size_t size) {
  const auto in = view(data, size);
  if (const auto m = bootstrap::parse_join(in)) must(m->hostname.size() <= 255);
  if (const auto m = bootstrap::parse_contribution(in)) must(m->blob.size() + 4 == size);
  if (const auto m = bootstrap::parse_result(in)) must(m->blob.size() + 8 == size);
  if (const auto m = bootstrap::parse_failure(in)) must(!m->ok());
  std::array<std::byte, 128> id{};
  std::memcpy(id.data(), data, std::min(size, id.size()));
  try {
    const auto u = bootstrap::unpack_unique_id(id);
    must(!u.addresses.empty() && u.addresses.size() <= 4);
  } catch (const Error &error) { must(error.code() == Code::Argument || error.code() == Code::Mismatch); }
}

std::vector<Bytes> rendezvous_seeds() {
  std::vector<Bytes> out;
  const auto add = [&](const ByteVector &frame) { out.push_back(seed(std::span(frame).subspan(net::kFrameHeader))); };
  ByteVector join, contribution, result, failure;
  bootstrap::append_join(join, {4711, "host"});
  bootstrap::append_contribution(contribution, 1, net::as_bytes("blob"));
  bootstrap::append_result(result, 1, 2, net::as_bytes("blob"));
  bootstrap::append_failure(failure, {Code::Timeout, "rank 2 of 3 did not arrive"});
  for (const auto *f : {&join, &contribution, &result, &failure}) add(*f);
  std::array<std::byte, 128> id;
  bootstrap::pack_unique_id({{7}, {"127.0.0.1:29501", "[::1]:29501"}}, id);
  out.push_back(seed(id));
  return out;
}

void address(const uint8_t *data, size_t size) {
  try {
    const auto hp = net::split_host_port({reinterpret_cast<const char *>(data), size});
    must(!hp.host.empty() && hp.port != 0);
  } catch (const Error &error) { must(error.code() == Code::Argument); }
}

std::vector<Bytes> address_seeds() {
  return {seed(net::as_bytes("127.0.0.1:29501")), seed(net::as_bytes("[::1]:1")), seed(net::as_bytes("host.example:65535"))};
}

}  // namespace

const std::vector<Target> &targets() {
  static const std::vector<Target> all{{"frames", frames, frame_seeds},
                                       {"handshake", handshake, handshake_seeds},
                                       {"endpoint", endpoint, endpoint_seeds},
                                       {"greeting", greeting, greeting_seeds},
                                       {"rendezvous", rendezvous, rendezvous_seeds},
                                       {"address", address, address_seeds}};
  return all;
}

}  // namespace isthmus::fuzz
