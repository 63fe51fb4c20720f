// Framing of messages on a stream, after the handshake: protocol version (2 bytes), type (2), body length (4), body. The
// reader is incremental and bounded: it holds at most one header and one body of the permitted length, and grows only when a
// valid header asks.
#pragma once

#include "net/wire.hpp"

namespace isthmus::net {

inline constexpr size_t kFrameHeader = 8;

void append_frame(ByteVector &out, uint16_t type, std::span<const std::byte> body);
std::array<std::byte, kFrameHeader> frame_header(uint16_t type, size_t length) noexcept;

class FrameReader {
 public:
  enum class Result { More, Frame, Bad };

  explicit FrameReader(size_t max_body = kMaxControlBody) noexcept : max_body_(max_body) {}
  std::span<std::byte> space();      // where to receive into, never empty; ends the life of the last body
  void received(size_t n) noexcept;  // n bytes were put there
  // The next whole frame. `body` lives until the next call of space(). Bad is final; why() says why.
  Result next(uint16_t &type, std::span<const std::byte> &body);
  size_t missing() const noexcept;  // bytes still needed for the next whole frame, at least 1
  const std::string &why() const noexcept { return why_; }

 private:
  size_t max_body_;
  ByteVector buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes
  std::string why_;
};

}  // namespace isthmus::net
