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
// A collective library's name. No rank of one is met by another's: the real ones, too, speak with their own kind alone.
using Library = std::array<char, 4>;
constexpr Library library_named(const char (&name)[5]) { return {name[0], name[1], name[2], name[3]}; }

// Makes a token, and a thread that waits for its ranks.
REHEARSAL_API bool new_rendezvous(const Library &library, Token *token);
// Of a token that the ranks have agreed on otherwise.
REHEARSAL_API bool open_rendezvous(const Library &library, const Token &token);
// Of one that no rank will come to; false: nobody listens.
REHEARSAL_API bool end_rendezvous(const Library &library, const Token &token);
// Of a part, for ranks that find each other without the rest: all of them know the whole's token, and in which words they are a part.
REHEARSAL_API Token token_of_part(const Token &whole, const std::vector<uint64_t> &words);

// The beginning of what the vendors' programs carry from the rank that makes an id to the others: whose it is, and the token.
constexpr size_t kIdBytes = 24;
REHEARSAL_API void write_id(const Library &library, const Token &token, unsigned char *id);
// False: it is not this library's. `*why` says so, and a line on stderr; if another library made it, the ranks that wait there end, too.
REHEARSAL_API bool read_id(const char *call, const Library &library, const unsigned char *id, Token *token,
                           std::string *why);

enum class Met { Ok, Stopped, System, Mismatch, DuplicateDevice, OtherLibrary };

// Waits for all ranks; `*fd` is the segment then. `patient`: waits, too, until somebody listens.
Met meet(const Library &library, const Token &token, int rank, int size, int device, const std::function<bool()> &stop,
         int *fd, bool patient);

// How large the segment of so many ranks is.
size_t segment_bytes(int size);

}  // namespace rehearsal
