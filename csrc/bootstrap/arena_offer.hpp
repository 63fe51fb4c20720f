// Sharing of arenas. A process writes a header into the first bytes of its own arena, and checks the header of a peer's arena before the
// memory counts as shared.
#pragma once

#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

inline constexpr size_t kArenaHeader = 64;

struct ArenaOffer {  // our own arena
  int fd = -1;       // the caller's; -1: there is no arena
  size_t bytes = 0;
  Bytes16 nonce{};
};
// Writes the header (process id, size, a fresh nonce) into the arena. Throws Error.
ArenaOffer offer_arena(int fd, size_t bytes, const Bytes16 &process);

struct PeerArena {  // a peer's arena, or why there is none
  Mapping mapping;
  Bytes16 nonce{};  // as read in the arena
  std::string why;
};
PeerArena map_peer_arena(const UniqueFd &fd, uint64_t bytes, const Bytes16 &process) noexcept;
// Decides whether the memory counts as shared: both sides have mapped, and the peer has read our nonce. Else `theirs` says why not, and is
// unmapped. `read_back` and `their_why` are what the peer says of our arena.
void agree(PeerArena &theirs, const ArenaOffer &ours, const Bytes16 &read_back, const std::string &their_why);

}  // namespace isthmus::bootstrap
