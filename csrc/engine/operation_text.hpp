// Operations in words, for errors and logs.
#pragma once

#include <string>

#include "engine/rank_core.hpp"

namespace isthmus::engine {

// A call as one number, for a mailbox and an answer: collective, dtype, reduction, commit, root.
constexpr uint64_t code_of(const Call &c) noexcept {
  return static_cast<uint64_t>(c.collective) | static_cast<uint64_t>(c.dtype) << 8 | static_cast<uint64_t>(c.op) << 16 |
         static_cast<uint64_t>(c.commit) << 24 | static_cast<uint64_t>(static_cast<uint32_t>(c.root)) << 32;
}
// Of a rank that has left. A program that ends in order destroys its communicators too.
inline constexpr const char *kHasLeft = "has destroyed its side of the communicator, or its program has ended";

std::string describe(const Identity &id, uint64_t code, uint64_t bytes);  // "all_reduce (float32, sum, 1024 elements)"
// "send to rank 2 (tag 5, float32, 4 elements)"
std::string message_text(const Identity &id, const Operation &op);
// "#41 all_reduce (...) on rank 0 of 'world' over shared memory"
std::string describe(const Identity &id, const Operation &op);

}  // namespace isthmus::engine
