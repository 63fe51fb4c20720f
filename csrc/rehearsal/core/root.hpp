// The root of an id: a TCP socket at which the process that made the id listens, as in real libraries of NCCL's shape. Each rank of the id
// connects to it once, says who it is and closes; the root's thread takes each connection at once and closes too. (In a real library the
// ranks learn each other's addresses by this. Here they meet by core/rendezvous.hpp, and the root only hears them.)
#pragma once

#include <array>

#include "core/settings.hpp"

namespace rehearsal {

// The root's address as it stands in an id: a sockaddr_in or a sockaddr_in6, and zeros behind it. All zeros: the id has no root.
using RootAddress = std::array<unsigned char, 28>;

// Listens at a free port of loopback, of IPv6 where NCCL_SOCKET_FAMILY is AF_INET6, until as many ranks have come as they say that they
// are. False: no socket.
REHEARSAL_API bool open_root(RootAddress *root);
// False: nobody listens there. True at once for an id without a root.
REHEARSAL_API bool greet_root(const RootAddress &root, int rank, int size);

}  // namespace rehearsal
