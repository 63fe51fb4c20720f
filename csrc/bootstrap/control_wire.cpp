#include "bootstrap/control_wire.hpp"

#include "base/error.hpp"

namespace isthmus::bootstrap {

net::ByteVector encode(const Intro &m) {
  net::ByteVector out;
  net::Writer(out).number(m.arena_bytes).bytes16(m.token).bytes(m.endpoint.pack());
  return out;
}

net::ByteVector encode(const Attach &m) {
  net::ByteVector out;
  net::Writer(out).number(m.arena_bytes).bytes16(m.nonce).text(m.why.substr(0, kMaxWhy));
  return out;
}

net::ByteVector encode(const Ready &m) {
  net::ByteVector out;
  net::Writer(out).bytes16(m.nonce).text(m.why.substr(0, kMaxWhy));
  return out;
}

net::ByteVector encode(const StreamIntro &m) {
  net::ByteVector out;
  net::Writer(out).bytes16(m.token).number(m.generation);
  return out;
}

std::optional<StreamIntro> parse_stream_intro(std::span<const std::byte> body) {
  net::Reader r(body);
  StreamIntro m;
  m.token = r.bytes16();
  m.generation = r.number<uint32_t>();
  if (!r.done()) return {};
  return m;
}

net::ByteVector encode(const Elapsed &m) {
  net::ByteVector out;
  net::Writer(out).number(m.ms);
  return out;
}

net::ByteVector encode(const Resume &m) {
  net::ByteVector out;
  net::Writer(out).bytes16(m.token).number(m.had);
  return out;
}

std::array<std::byte, 12> encode(const Beat &m) noexcept {
  std::array<std::byte, 12> out;
  for (size_t i = 0; i < 4; ++i) out[i] = static_cast<std::byte>(m.ms >> (8 * i));
  for (size_t i = 0; i < 8; ++i) out[4 + i] = static_cast<std::byte>(m.had >> (8 * i));
  return out;
}

net::ByteVector encode_count(uint64_t had) {
  net::ByteVector out;
  net::Writer(out).number(had);
  return out;
}

std::optional<Beat> parse_beat(std::span<const std::byte> body) {
  net::Reader r(body);
  Beat m;
  m.ms = r.number<uint32_t>();
  m.had = r.number<uint64_t>();
  if (!r.done() || m.ms > kMaxSpanMs) return {};
  return m;
}

std::optional<Resume> parse_resume(std::span<const std::byte> body) {
  net::Reader r(body);
  Resume m;
  m.token = r.bytes16();
  m.had = r.number<uint64_t>();
  if (!r.done()) return {};
  return m;
}

std::optional<uint64_t> parse_count(std::span<const std::byte> body) {
  net::Reader r(body);
  const auto had = r.number<uint64_t>();
  if (!r.done()) return {};
  return had;
}

std::optional<Intro> parse_intro(std::span<const std::byte> body) {
  net::Reader r(body);
  Intro m;
  m.arena_bytes = r.number<uint64_t>();
  m.token = r.bytes16();
  if (!r.ok()) return {};
  try {
    m.endpoint = Endpoint::unpack(r.rest());
  } catch (const Error &) { return {}; }
  return m;
}

std::optional<Attach> parse_attach(std::span<const std::byte> body) {
  net::Reader r(body);
  Attach m;
  m.arena_bytes = r.number<uint64_t>();
  m.nonce = r.bytes16();
  m.why = r.text(kMaxWhy);
  if (!r.done()) return {};
  return m;
}

std::optional<Ready> parse_ready(std::span<const std::byte> body) {
  net::Reader r(body);
  Ready m;
  m.nonce = r.bytes16();
  m.why = r.text(kMaxWhy);
  if (!r.done()) return {};
  return m;
}

std::optional<Elapsed> parse_elapsed(std::span<const std::byte> body) {
  net::Reader r(body);
  Elapsed m;
  m.ms = r.number<uint32_t>();
  if (!r.done() || m.ms > kMaxSpanMs) return {};
  return m;
}

}  // namespace isthmus::bootstrap
