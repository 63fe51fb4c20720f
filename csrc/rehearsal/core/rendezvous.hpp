// How the ranks of a communicator find each other: whoever makes the token listens for them, and hands all of them one segment of memory.
// Nothing of it has a name in a file system.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/settings.hpp"

namespace rehearsal {

using Token = std::array<unsigned char, 16>;

// Makes a token, and a thread that waits for its ranks.
REHEARSAL_API bool new_rendezvous(Token *token);
REHEARSAL_API bool open_rendezvous(const Token &token);  // of a token that the ranks have agreed on otherwise
REHEARSAL_API bool end_rendezvous(const Token &token);   // of one that no rank will come to; false: nobody listens
// Of a part, for ranks that find each other without the rest: all of them know the whole's token, and in which words they are a part.
REHEARSAL_API Token token_of_part(const Token &whole, const std::vector<uint64_t> &words);

enum class Met { Ok, Stopped, System, Mismatch, DuplicateDevice };

// Waits for all ranks; `*fd` is the segment then. `patient`: waits, too, until somebody listens.
Met meet(const Token &token, int rank, int size, int device, const std::function<bool()> &stop, int *fd, bool patient);

// How large the segment of so many ranks is.
size_t segment_bytes(int size);

}  // namespace rehearsal
