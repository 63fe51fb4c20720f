// The host memory that is registered for one device, and where the device finds the memory. Thread-safe. A look allocates nothing.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>

#include "base/lock.hpp"

namespace isthmus::device {

class Registered {
 public:
  bool overlaps(const void *memory, size_t bytes) const {
    const auto *const begin = static_cast<const std::byte *>(memory);
    const SharedLock lock(mutex_);
    const auto after = ranges_.lower_bound(begin + bytes);
    return after != ranges_.begin() && std::prev(after)->first + std::prev(after)->second.bytes > begin;
  }
  void add(const void *memory, size_t bytes, void *there) {
    const Lock lock(mutex_);
    ranges_[static_cast<const std::byte *>(memory)] = {bytes, static_cast<std::byte *>(there)};
  }
  bool remove(const void *memory) {  // whether the range was there
    const Lock lock(mutex_);
    return ranges_.erase(static_cast<const std::byte *>(memory)) != 0;
  }
  // Where the device finds that byte, or null.
  void *there(const void *memory) const {
    const auto *const p = static_cast<const std::byte *>(memory);
    const SharedLock lock(mutex_);
    auto it = ranges_.upper_bound(p);
    if (it == ranges_.begin() || p >= (--it)->first + it->second.bytes) return nullptr;
    return it->second.there + (p - it->first);
  }

 private:
  struct RegisteredRange {
    size_t bytes = 0;
    std::byte *there = nullptr;
  };
  mutable SharedMutex mutex_;
  std::map<const std::byte *, RegisteredRange> ranges_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::device
