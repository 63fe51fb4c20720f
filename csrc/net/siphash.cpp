#include "net/siphash.hpp"

#include <bit>

namespace isthmus::net {
namespace {

uint64_t load64(const void *bytes, size_t count = 8) noexcept {  // little endian, whatever the machine
  const auto *p = static_cast<const uint8_t *>(bytes);
  uint64_t v = 0;
  for (size_t i = 0; i < count; ++i) v |= uint64_t{p[i]} << (8 * i);
  return v;
}

struct Sip {
  uint64_t v0, v1, v2, v3;

  explicit Sip(const Bytes16 &key) noexcept {
    const uint64_t k0 = load64(key.data()), k1 = load64(key.data() + 8);
    v0 = k0 ^ 0x736f6d6570736575u;
    v1 = k1 ^ 0x646f72616e646f6du ^ 0xee;  // 0xee: the 128-bit variant
    v2 = k0 ^ 0x6c7967656e657261u;
    v3 = k1 ^ 0x7465646279746573u;
  }
  void rounds(int n) noexcept {
    for (; n > 0; --n) {
      v0 += v1;
      v1 = std::rotl(v1, 13);
      v1 ^= v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16);
      v3 ^= v2;
      v0 += v3;
      v3 = std::rotl(v3, 21);
      v3 ^= v0;
      v2 += v1;
      v1 = std::rotl(v1, 17);
      v1 ^= v2;
      v2 = std::rotl(v2, 32);
    }
  }
  void absorb(uint64_t m) noexcept {
    v3 ^= m;
    rounds(2);
    v0 ^= m;
  }
  uint64_t value() const noexcept { return v0 ^ v1 ^ v2 ^ v3; }
};

void store64(uint64_t v, uint8_t *out) noexcept {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<uint8_t>(v >> (8 * i));
}

}  // namespace

Bytes16 siphash128(const Bytes16 &key, std::span<const std::byte> message) noexcept {
  Sip sip(key);
  size_t at = 0;
  for (; at + 8 <= message.size(); at += 8) sip.absorb(load64(message.data() + at));
  sip.absorb(load64(message.data() + at, message.size() - at) | uint64_t{message.size() & 0xff} << 56);
  Bytes16 out;
  sip.v2 ^= 0xee;
  sip.rounds(4);
  store64(sip.value(), out.data());
  sip.v1 ^= 0xdd;
  sip.rounds(4);
  store64(sip.value(), out.data() + 8);
  return out;
}

bool equal_constant_time(const Bytes16 &a, const Bytes16 &b) noexcept {
  volatile uint8_t difference = 0;  // volatile: the compiler must not end the loop early
  for (size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace isthmus::net
