// Unique ids that both sides can read: the vendor's own id in front, and behind it, where that has zeros, a ticket for the meeting of all
// ranks. A rank without Isthmus sees nothing but its vendor's id.
#pragma once

#include <isthmus/isthmus.h>

#include <cstddef>
#include <span>
#include <string>

namespace isthmus::bridge {

struct Tail {
  char magic[7];
  char maker;  // the family that made the id, by its first letter
  isthmus_ticket ticket;
};
static_assert(sizeof(Tail) == 80 && alignof(Tail) == 1);

// Whether the end of the id is free for a tail.
bool has_room(std::span<const unsigned char> id);
void write_tail(std::span<unsigned char> id, const char *family, const isthmus_ticket &ticket);
bool read_tail(std::span<const unsigned char> id, Tail &tail);  // false: it was made without Isthmus

std::string name_of(const isthmus_ticket &ticket);  // the same on all ranks, and of no other meeting

}  // namespace isthmus::bridge
