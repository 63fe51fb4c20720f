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
  if (!head || head->ranks > kMostFailureRanks || bytes.size() / sizeof(int32_t) < head->ranks) return std::nullopt;
  const auto ranks = bytes.first(head->ranks * sizeof(int32_t));
  bytes = bytes.subspan(ranks.size());
  const std::string_view text(reinterpret_cast<const char *>(bytes.data()), bytes.size());
  const size_t subject = std::min<size_t>(head->subject, text.size());
  return AbortMessage{*head, ranks, text.substr(0, subject), text.substr(subject)};
}

std::vector<int> AbortMessage::numbers() const {
  std::vector<int> out(ranks.size() / sizeof(int32_t));
  if (!out.empty()) std::memcpy(out.data(), ranks.data(), ranks.size());
  return out;
}

}  // namespace isthmus::process
