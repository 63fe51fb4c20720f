#include "net/frame.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace isthmus::net {
namespace {

struct Header {
  uint16_t version, type;
  uint32_t length;
};

Header parse(const std::byte *bytes) noexcept {
  Reader r({bytes, kFrameHeader});
  Header h;
  h.version = r.number<uint16_t>();
  h.type = r.number<uint16_t>();
  h.length = r.number<uint32_t>();
  return h;
}

}  // namespace

void append(ByteVector &out, std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

std::array<std::byte, kFrameHeader> frame_header(uint16_t type, size_t length) noexcept {
  std::array<std::byte, kFrameHeader> h;
  const uint64_t v = uint64_t{kProtocolVersion} | uint64_t{type} << 16 | uint64_t{length} << 32;
  for (size_t i = 0; i < h.size(); ++i) h[i] = static_cast<std::byte>(v >> (8 * i));
  return h;
}

void append_frame(ByteVector &out, uint16_t type, std::span<const std::byte> body) {
  Writer(out).bytes(frame_header(type, body.size())).bytes(body);
}

std::span<std::byte> FrameReader::space() {
  if (begin_ == end_) begin_ = end_ = 0;
  if (buffer_.empty()) buffer_.resize(4096);
  if (end_ == buffer_.size()) {
    if (begin_ > 0) {
      std::copy(buffer_.begin() + static_cast<ptrdiff_t>(begin_), buffer_.begin() + static_cast<ptrdiff_t>(end_),
                buffer_.begin());
      end_ -= begin_;
      begin_ = 0;
    } else {  // the frame is larger than the buffer, and next() has checked the length
      buffer_.resize(std::min(buffer_.size() * 2, std::max(buffer_.size() + 1, kFrameHeader + max_body_)));
    }
  }
  return std::span(buffer_).subspan(end_);
}

void FrameReader::received(size_t n) noexcept { end_ += n; }

size_t FrameReader::missing() const noexcept {
  const size_t have = end_ - begin_;
  if (have < kFrameHeader) return kFrameHeader - have;
  const size_t whole = kFrameHeader + std::min<size_t>(parse(buffer_.data() + begin_).length, max_body_);
  return whole > have ? whole - have : 1;
}

FrameReader::Result FrameReader::next(uint16_t &type, std::span<const std::byte> &body) {
  if (!why_.empty()) return Result::Bad;
  if (end_ - begin_ < kFrameHeader) return Result::More;
  const Header h = parse(buffer_.data() + begin_);
  if (h.version != kProtocolVersion) {
    why_ = "a frame of " + version_text(h.version, kProtocolVersion);
    return Result::Bad;
  }
  if (h.length > max_body_) {
    why_ = formatted("a frame of {} bytes (type {}); at most {} are allowed", h.length, h.type, max_body_);
    return Result::Bad;
  }
  if (end_ - begin_ < kFrameHeader + h.length) return Result::More;
  type = h.type;
  body = std::span<const std::byte>(buffer_).subspan(begin_ + kFrameHeader, h.length);
  begin_ += kFrameHeader + h.length;
  return Result::Frame;
}

}  // namespace isthmus::net
