// The bytes of a ticket.
//
//   magic 4 | version 2 | addresses 1 | which are IPv6 1 | number 4 | key 16 | each address with its port, 6 or 18 | zeros | checksum 8
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bootstrap/rendezvous.hpp"
#include "net/address.hpp"

namespace isthmus::bootstrap {

struct Ticket {
  uint32_t number = 0;                  // tells the tickets of one server apart
  Bytes16 key{};                        // the secret of this ticket
  std::vector<net::Address> addresses;  // where the server listens, the best first; none has a scope
};

// Of the addresses as many as there is room for, the best first. Returns how many: at most six of IPv4, or three beside one of IPv6.
size_t pack_ticket(const Ticket &ticket, std::span<std::byte, kTicketBytes> out);
// Throws Error(Argument), Error(Mismatch) for another version. What it takes, pack_ticket() makes again, byte for byte.
Ticket unpack_ticket(std::span<const std::byte, kTicketBytes> bytes);
// Writes the checksum that fits the other bytes.
void seal_ticket(std::span<std::byte, kTicketBytes> bytes);

}  // namespace isthmus::bootstrap
