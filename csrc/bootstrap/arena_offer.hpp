// Sharing of arenas: what this process writes into the first bytes of its own, and what it checks in a peer's before that
// counts as shared memory.
#pragma once

#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

inline constexpr size_t kArenaHeader = 64;

struct ArenaOffer {  // our own arena
  int fd = -1;       // the caller's; -1: none
  size_t bytes = 0;
  Bytes16 nonce{};
};
// Writes the header (process id, size, a fresh nonce) into the arena. Throws Error.
ArenaOffer offer_arena(int fd, size_t bytes, const Bytes16 &process);

struct PeerArena {  // a peer's arena, or why there is none
  Mapping mapping;
  Bytes16 nonce{};  // as read in it
  std::string why;
};
PeerArena map_peer_arena(const UniqueFd &fd, uint64_t bytes, const Bytes16 &process) noexcept;
// Decides whether the memory counts as shared: both sides have mapped, and the peer has read our nonce. Else `theirs` says why not, and is
// unmapped. `read_back`, `their_why`: what the peer says of our arena.
void agree(PeerArena &theirs, const ArenaOffer &ours, const Bytes16 &read_back, const std::string &their_why);

}  // namespace isthmus::bootstrap
