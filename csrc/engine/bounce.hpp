// Bounce says where plain host memory of the user's goes through pinned memory, piece by piece (collective/bounces.hpp). A Bounce is a part of its
// operation.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace isthmus::engine {

struct Bounce {
  std::byte *host = nullptr;       // null: none
  std::byte *device = nullptr;     // the same bytes, as the device reaches them
  uint64_t staging = 0;            // the offset in the arena; 0: the pinned memory is a buffer of its own
  uint64_t input = 0, output = 0;  // bytes
  uint64_t piece = 0;
  uint32_t slots = 0;  // pieces that have room at one time
  uint32_t input_pieces = 0, output_pieces = 0;
  // Pieces that a processor has filled before the device was given anything; all pieces that a processor has filled; pieces of the output that a
  // processor has emptied. The thread that submits owns the numbers first, and then the thread with the right to execute.
  uint32_t filled_before = 0, filled = 0, emptied = 0;

  explicit operator bool() const noexcept { return host != nullptr; }
  uint64_t place(uint32_t k) const noexcept { return k % slots * piece; }
  uint64_t begin(uint32_t k) const noexcept { return uint64_t{k < input_pieces ? k : k - input_pieces} * piece; }
  uint64_t bytes(uint32_t k) const noexcept { return std::min(piece, (k < input_pieces ? input : output) - begin(k)); }
};

}  // namespace isthmus::engine
