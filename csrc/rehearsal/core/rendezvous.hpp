// Rendezvous: how the ranks of a communicator find each other, and get one segment of shared memory. The process that makes the token has a
// thread that listens at an abstract Unix socket, whose name is the token. Nothing has a name in a file system.
//
//   process that makes the token              each rank
//     new_rendezvous(): makes the token
//     a thread listens: gather()
//       (the program carries the token to all ranks)
//     checks what each rank says      <----     meet(): connects, says its library, rank, size and device
//     all have come: makes the segment
//     answers all ranks               ---->     returns Ok and the segment's descriptor
//
// If a rank does not fit, gather() answers all who have come with the reason, and ends.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/root.hpp"
#include "core/settings.hpp"

namespace rehearsal {

using Token = std::array<unsigned char, 12>;
// A collective library's name. Ranks of two libraries do not meet: with the vendors, too, each library only speaks to its own kind.
using Library = std::array<char, 4>;
constexpr Library library_named(const char (&name)[5]) { return {name[0], name[1], name[2], name[3]}; }

// Makes a token, and a thread that waits for the token's ranks. False: no socket.
REHEARSAL_API bool new_rendezvous(const Library &library, Token *token);
// Makes the thread for a token that the ranks know already. False: no socket, or some thread listens for the token.
REHEARSAL_API bool open_rendezvous(const Library &library, const Token &token);
// Ends the thread of a token to which no rank will come. False: nobody listens.
REHEARSAL_API bool end_rendezvous(const Library &library, const Token &token);
// The token of a part of a communicator. The part's ranks all know the communicator's token and the same `words`, so no rank has to carry
// the token.
REHEARSAL_API Token token_of_part(const Token &whole, const std::vector<uint64_t> &words);

// The first bytes of an id (ncclUniqueId, HcclRootInfo), which the program carries from one rank to all: a mark, the library, the root, the
// token. So the root's address stands behind 8 bytes, where real libraries of NCCL's shape have it.
constexpr size_t kIdBytes = 48;
REHEARSAL_API void write_id(const Library &library, const RootAddress &root, const Token &token, unsigned char *id);
// `root` may be null. False: the id is not this library's. `*why` and a line on stderr say so. If another simulated library made the id, the ranks that wait at
// the id's token end, too.
REHEARSAL_API bool read_id(const char *call, const Library &library, const unsigned char *id, Token *token, std::string *why,
                           RootAddress *root = nullptr);

enum class Met { Ok, Stopped, System, Mismatch, DuplicateDevice, OtherLibrary };

// A rank meets the others. Returns when all ranks have come, or one that does not fit, or when stop() is true.
//
//   Ok                *fd is the segment's descriptor, which the caller closes
//   Stopped           stop() was true
//   System            nobody listens, or a system call failed. `patient`: the rank waits until somebody listens.
//   Mismatch          a rank came twice, or ranks disagree about the size
//   DuplicateDevice   two ranks of one process are on one device
//   OtherLibrary      a rank of another library came
Met meet(const Library &library, const Token &token, int rank, int size, int device, const std::function<bool()> &stop,
         int *fd, bool patient);

// A socket in the network namespace of REHEARSAL_MEET, where ranks of different namespaces find each other; not set: in the process's own.
// -1: there is no such namespace, or this thread may not enter it.
int meeting_socket(int family);

// Bytes of the segment of so many ranks.
size_t segment_bytes(int size);

}  // namespace rehearsal
