// Bytes on the wire: little endian, without padding. A Reader never reads past its end. After the first short read every value is zero
// and ok() is false. So a parser reads all fields and asks ok() once.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/protocol.hpp"

namespace isthmus::net {

using ByteVector = std::vector<std::byte>;

inline std::span<const std::byte> as_bytes(std::string_view text) noexcept {
  return {reinterpret_cast<const std::byte *>(text.data()), text.size()};
}

// Defined in frame.cpp: of an inlined one g++ 12 warns of overflows that cannot be.
void append(ByteVector &out, std::span<const std::byte> bytes);

class Writer {
 public:
  explicit Writer(ByteVector &out) noexcept : out_(out) {}
  template <class T>
  Writer &number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) out_.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
    return *this;
  }
  Writer &bytes(std::span<const std::byte> b) {
    append(out_, b);
    return *this;
  }
  Writer &bytes16(const Bytes16 &b) { return bytes(std::as_bytes(std::span(b))); }
  Writer &text(std::string_view t) {  // the length in two bytes, then the text; a longer text is cut
    t = t.substr(0, 0xffff);
    number(static_cast<uint16_t>(t.size()));
    return bytes(as_bytes(t));
  }

 private:
  ByteVector &out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> in) noexcept : in_(in) {}
  template <class T>
  T number() noexcept {
    const auto b = take(sizeof(T));
    uint64_t v = 0;
    for (size_t i = 0; i < b.size(); ++i) v |= uint64_t{std::to_integer<uint8_t>(b[i])} << (8 * i);
    return static_cast<T>(v);
  }
  Bytes16 bytes16() noexcept {
    Bytes16 out{};
    const auto b = take(out.size());
    if (!b.empty()) std::memcpy(out.data(), b.data(), out.size());
    return out;
  }
  std::string text(size_t limit) {
    const size_t n = number<uint16_t>();
    if (n > limit) ok_ = false;
    const auto b = take(n);
    return {reinterpret_cast<const char *>(b.data()), b.size()};
  }
  std::span<const std::byte> bytes(size_t n) noexcept { return take(n); }
  std::span<const std::byte> rest() noexcept { return take(in_.size()); }
  bool ok() const noexcept { return ok_; }
  bool done() const noexcept { return ok_ && in_.empty(); }  // all was read without a fault, and nothing is left over

 private:
  std::span<const std::byte> take(size_t n) noexcept {
    if (!ok_ || n > in_.size()) {
      ok_ = false;
      return {};
    }
    const auto b = in_.first(n);
    in_ = in_.subspan(n);
    return b;
  }
  std::span<const std::byte> in_;
  bool ok_ = true;
};

}  // namespace isthmus::net
