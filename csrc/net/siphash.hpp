// SipHash-2-4 with 128-bit output, a keyed MAC for short messages: J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast
// short-input PRF" (INDOCRYPT 2012), in the authors' 128-bit variant.
#pragma once

#include <span>

#include "net/protocol.hpp"

namespace isthmus::net {

Bytes16 siphash128(const Bytes16 &key, std::span<const std::byte> message) noexcept;

// The comparison takes the same time wherever the arrays differ.
bool equal_constant_time(const Bytes16 &a, const Bytes16 &b) noexcept;

}  // namespace isthmus::net
