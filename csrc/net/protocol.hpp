// The protocol version, and the limits of what an unknown client may cost a process. The handshake (handshake.hpp) is frozen. A change of
// anything behind the handshake raises kProtocolVersion.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace isthmus::net {

inline constexpr uint16_t kProtocolVersion = 33;

inline constexpr size_t kMaxControlBody = 64 * 1024;     // body of one control frame
inline constexpr size_t kMaxUnauthenticatedBytes = 256;  // read from a client before it has proved the key
inline constexpr size_t kMaxHalfOpen = 64;               // clients that are inside the handshake at one time
inline constexpr int64_t kHandshakeNs = 3'000'000'000;   // time a client has for the handshake

using Bytes16 = std::array<uint8_t, 16>;

// 16 bytes of the kernel's random generator.
Bytes16 random16();

// "protocol version 2, this process speaks version 1: ...", for error texts that name both.
std::string version_text(uint16_t theirs, uint16_t ours);

}  // namespace isthmus::net
