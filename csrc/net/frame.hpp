// Messages on a stream, behind the handshake. A frame is the protocol version (2 bytes), the type (2), the length of the body (4) and
// the body.
//
// The reader takes a stream in pieces of any size. Its memory is bounded: one header and one body of the permitted length. The memory
// grows only when a valid header asks for more.
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
  std::span<std::byte> space();      // where to receive into, never empty. Ends the life of the last body
  void received(size_t n) noexcept;  // n bytes have been put into space()
  // The next whole frame. `body` lives until the next call of space(). Bad is final, and why() says what was bad.
  Result next(uint16_t &type, std::span<const std::byte> &body);
  size_t missing() const noexcept;  // bytes that the next whole frame still needs, at least 1
  const std::string &why() const noexcept { return why_; }

 private:
  size_t max_body_;
  ByteVector buffer_;
  size_t begin_ = 0, end_ = 0;  // the unread bytes of buffer_
  std::string why_;
};

}  // namespace isthmus::net
