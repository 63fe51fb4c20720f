#include "id.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace isthmus::bridge {
namespace {

constexpr char kMagic[7] = {'I', 's', 't', 'h', 'm', 'u', 's'};

}  // namespace

bool has_room(std::span<const unsigned char> id) {
  return id.size() >= sizeof(Tail) &&
         std::all_of(id.end() - sizeof(Tail), id.end(), [](unsigned char byte) { return byte == 0; });
}

void write_tail(std::span<unsigned char> id, const char *family, const isthmus_ticket &ticket) {
  Tail tail{};
  std::memcpy(tail.magic, kMagic, sizeof kMagic);
  tail.maker = family[0];
  tail.ticket = ticket;
  std::memcpy(id.data() + id.size() - sizeof tail, &tail, sizeof tail);
}

bool read_tail(std::span<const unsigned char> id, Tail &tail) {
  if (id.size() < sizeof tail) return false;
  std::memcpy(&tail, id.data() + id.size() - sizeof tail, sizeof tail);
  return std::memcmp(tail.magic, kMagic, sizeof kMagic) == 0;
}

std::string name_of(const isthmus_ticket &ticket) {
  char text[32];
  const auto *end = reinterpret_cast<const unsigned char *>(ticket.bytes) + sizeof ticket.bytes;  // its checksum
  std::snprintf(text, sizeof text, "interposed-%02x%02x%02x%02x", end[-4], end[-3], end[-2], end[-1]);
  return text;
}

}  // namespace isthmus::bridge
