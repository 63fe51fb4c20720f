#include "process/control_wire.hpp"

#include <algorithm>

#include "link/arena.hpp"
#include "link/memory.hpp"

namespace isthmus::process {

bool lies_in(const StreamRingBody &ring, uint64_t arena_bytes) noexcept {
  return ring.offset >= link::Arena::kHeader && ring.offset % 64 == 0 && ring.offset <= arena_bytes &&
         link::ByteRing::is_capacity(ring.capacity) && arena_bytes - ring.offset >= link::ByteRing::bytes(ring.capacity);
}

std::optional<AbortMessage> unpack_abort(std::span<const std::byte> bytes) noexcept {
  const auto head = unpack<AbortHead>(bytes);
  if (!head) return std::nullopt;
  const std::string_view text(reinterpret_cast<const char *>(bytes.data()), bytes.size());
  const size_t subject = std::min<size_t>(head->subject, text.size());
  return AbortMessage{*head, text.substr(0, subject), text.substr(subject)};
}

}  // namespace isthmus::process
