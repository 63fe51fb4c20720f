#include "process/device_scratch.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"

namespace isthmus::process {

DeviceScratch::~DeviceScratch() {
  for (const Block &b : free_) runtime_.release(device_, b.memory);
}

void DeviceScratch::reserve(size_t bytes) {
  if (bytes == 0) return;
  {
    const Lock lock(mutex_);
    if (reserved_ >= kReserved) return;
    ++reserved_;
  }
  try {
    give({runtime_.allocate(device_, bytes), bytes});
  } catch (...) {
    const Lock lock(mutex_);
    --reserved_;
    throw;
  }
}

DeviceScratch::Block DeviceScratch::take(size_t bytes) {
  {
    const Lock lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->bytes >= bytes && (best == free_.end() || it->bytes < best->bytes)) best = it;
    if (best != free_.end()) {
      const Block found = *best;
      *best = free_.back();
      free_.pop_back();
      return found;
    }
  }
  constexpr size_t kAligned = 256;
  const size_t whole = std::bit_ceil(bytes), least = (bytes + kAligned - 1) & ~(kAligned - 1);
  try {
    return {runtime_.allocate(device_, whole), whole};
  } catch (const Error &) {
    if (least == whole) throw;
  }
  return {runtime_.allocate(device_, least), least};
}

void DeviceScratch::give(Block block) noexcept {
  if (!block.memory) return;
  const Lock lock(mutex_);
  free_.push_back(block);
}

}  // namespace isthmus::process
