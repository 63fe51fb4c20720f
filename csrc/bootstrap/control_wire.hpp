// The messages of the mesh itself, behind the handshake. Types from kFirstOwnType upward are the mesh's. Types below belong to the mesh's
// user.
#pragma once

#include <array>
#include <optional>

#include "bootstrap/mesh.hpp"
#include "net/frame.hpp"

namespace isthmus::bootstrap {

inline constexpr uint16_t kFirstOwnType = 0xff00;
enum class Own : uint16_t {
  Heartbeat = 0xff00,  // the sender's interval of heartbeats, and how many messages of the mesh's user have come there
  Bye,                 // empty: the sender's mesh is being destroyed
  Intro,               // dialer: who I am, and my arena, whose memfd travels along
  Attach,              // acceptor: what I read in your arena, and my arena, whose memfd travels along
  Ready,               // dialer: what I read in your arena. Ends the greeting.
  Stream,              // dialer, on a data connection: the pair's token. The bytes behind it are the link's.
  Resume,  // dialer, on a connection that is to take the place of the control connection: the pair's token, how many messages have come there
  Resumed,  // acceptor: how many messages have come there. What did not come follows, both ways
  LeftOut,  // for how long the sender has heard nothing; it takes the receiver for lost, and closes the connection
};

struct Intro {
  uint64_t arena_bytes = 0;  // 0: no arena is offered
  Bytes16 token{};           // random: what every data connection of this pair of processes shows
  Endpoint endpoint;
};
struct Attach {
  uint64_t arena_bytes = 0;
  Bytes16 nonce{};  // as read in the receiver's arena
  std::string why;  // why the receiver's arena could not be mapped; empty: it was mapped
};
struct Ready {
  Bytes16 nonce{};
  std::string why;
};

struct StreamIntro {
  Bytes16 token{};
  uint32_t generation = 0;  // of the stream's connections, from 0
};

struct Beat {
  uint32_t ms = 0;   // the interval; at most kMaxSpanMs
  uint64_t had = 0;  // messages that have come
};

struct Resume {
  Bytes16 token{};
  uint64_t had = 0;
};

// A span of time, as LeftOut has it.
struct Elapsed {
  uint32_t ms = 0;  // at most kMaxSpanMs
};

inline constexpr size_t kMaxWhy = 1024;
inline constexpr uint32_t kMaxSpanMs = 3'600'000;

net::ByteVector encode(const Intro &m);
net::ByteVector encode(const Attach &m);
net::ByteVector encode(const Ready &m);
net::ByteVector encode(const Elapsed &m);
net::ByteVector encode(const Resume &m);
std::array<std::byte, 12> encode(const Beat &m) noexcept;  // without memory of its own: a heartbeat allocates nothing
net::ByteVector encode_count(uint64_t had);                // of Resumed
net::ByteVector encode(const StreamIntro &m);
std::optional<Intro> parse_intro(std::span<const std::byte> body);
std::optional<Attach> parse_attach(std::span<const std::byte> body);
std::optional<Ready> parse_ready(std::span<const std::byte> body);
std::optional<StreamIntro> parse_stream_intro(std::span<const std::byte> body);
std::optional<Beat> parse_beat(std::span<const std::byte> body);
std::optional<Resume> parse_resume(std::span<const std::byte> body);
std::optional<uint64_t> parse_count(std::span<const std::byte> body);
std::optional<Elapsed> parse_elapsed(std::span<const std::byte> body);

}  // namespace isthmus::bootstrap
