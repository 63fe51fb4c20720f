// Unique ids that programs of both sides can read. The vendor's own id comes first. Behind it, where the vendor has zeros,
// stands a ticket for the meeting of all ranks. A rank without Isthmus sees nothing but its vendor's id.
#pragma once

#include <isthmus/isthmus.h>

#include <cstddef>
#include <span>
#include <string>

namespace isthmus::bridge {

struct Tail {
  char magic[7];
  char maker;  // the first letter of the family whose library made the id
  isthmus_ticket ticket;
};
static_assert(sizeof(Tail) == 80 && alignof(Tail) == 1);

// The maker of an id that no vendor's library made. What is made with such an id is Isthmus' in any case.
constexpr const char *kNoVendor = "+";

// Whether the end of the id is free for a tail.
bool has_room(std::span<const unsigned char> id);
void write_tail(std::span<unsigned char> id, const char *family, const isthmus_ticket &ticket);
bool read_tail(std::span<const unsigned char> id, Tail &tail);  // false: the id was made without Isthmus

std::string name_of(const isthmus_ticket &ticket);  // the same on all ranks, and different for every meeting

}  // namespace isthmus::bridge
