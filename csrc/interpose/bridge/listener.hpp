// The listener that the real library has for an id. A rank without Isthmus connects there, and comes to no census.
#pragma once

#include <span>

namespace isthmus::bridge {

// The descriptor of the listening socket of this process whose address stands in the library's part of the id: a sockaddr
// behind a number of 8 bytes, or, in libraries before NCCL 2.14, at the beginning. -1: there is none. The descriptor is the
// library's.
int listener_of(std::span<const unsigned char> id);

}  // namespace isthmus::bridge
