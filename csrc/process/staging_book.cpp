#include "process/staging_book.hpp"

#include "base/error.hpp"

namespace isthmus::process {

uint64_t StagingBook::take_fixed_ring(uint64_t bytes, int part_of) noexcept {
  const Lock lock(mutex_);
  for (auto it = spare_rings_.begin(); it != spare_rings_.end(); ++it)
    if (it->second == bytes) {
      const uint64_t offset = it->first;
      spare_rings_.erase(it);
      return offset;
    }
  // The rest of the staging memory stays for messages, and for rings of other sizes.
  if (bytes == 0 || arena_.staging_used() + bytes > arena_.staging_limit() / static_cast<uint64_t>(part_of)) return 0;
  try {
    return arena_.allocate_staging(bytes);
  } catch (const Error &) { return 0; }
}

void StagingBook::give_fixed_ring(uint64_t offset, uint64_t bytes) noexcept {
  const Lock lock(mutex_);
  spare_rings_.emplace_back(offset, bytes);
}

bool StagingBook::is_lent() const {
  for (const auto &share : message_shares_)
    if (share.load(std::memory_order_relaxed) != 0) return true;
  for (const auto &rank : ranks_.all())
    if (rank->has_lent_staging()) return true;
  return false;
}

bool StagingBook::give_idle() {
  bool given = false;
  for (const auto &rank : ranks_.all()) given |= rank->give_idle_staging();
  return given;
}

std::optional<uint64_t> StagingBook::MessageStaging::allocate(uint64_t bytes) noexcept {
  for (bool again = false;; again = true) {
    try {
      return book_.arena_.allocate_staging(bytes, link::Fill::AnyBytes);
    } catch (const Error &) {}
    if (again || !book_.give_idle()) return std::nullopt;  // slots that no operation has
  }
}

}  // namespace isthmus::process
