// A region of the arena, and what is free in it. Knows offsets alone. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

#include "base/error.hpp"

namespace isthmus::link {

class ArenaRegion {
 public:
  ArenaRegion(uint64_t begin, size_t bytes) : begin_(begin), bytes_(bytes), fresh_(begin), free_{{begin, bytes}} {}

  size_t bytes() const noexcept { return bytes_; }
  size_t used() const noexcept { return used_; }
  bool pinned() const noexcept { return pinned_; }
  uint64_t fresh() const noexcept { return fresh_; }  // from here on nobody has had any of it

  // The lowest place that fits, of whole pages. Error(Resource): there is none. `what`: the region, for the text.
  uint64_t allocate(size_t bytes, const char *what) {
    bytes = (bytes + kPage - 1) / kPage * kPage;
    const auto it = std::find_if(free_.begin(), free_.end(), [&](const auto &place) { return place.second >= bytes; });
    if (it == free_.end())
      fail(Code::Resource,
           "{} bytes of shared memory asked for, but {} of {} bytes ({}) are in use; destroy communicators or raise the "
           "limit",
           bytes, used_, bytes_, what);
    const auto [offset, size] = *it;
    free_.erase(it);
    if (size > bytes) free_.emplace(offset + bytes, size - bytes);
    taken_.emplace(offset, bytes);
    used_ += bytes;
    fresh_ = std::max(fresh_, offset + bytes);
    return offset;
  }

  // The bytes of what was allocated there; 0: nothing was.
  size_t taken(uint64_t offset) const {
    const auto it = taken_.find(offset);
    return it == taken_.end() ? 0 : it->second;
  }

  void release(uint64_t offset) {
    const auto it = taken_.find(offset);
    if (it == taken_.end()) return;
    size_t bytes = it->second;
    taken_.erase(it);
    used_ -= bytes;
    const uint64_t end = begin_ + bytes_;  // the region may have become smaller
    if (offset >= end) return;
    bytes = std::min<size_t>(bytes, end - offset);
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_.emplace(offset, bytes);
  }

  // Of the region the first `bytes` are pinned, and no others are allocated from now on.
  void pin(size_t bytes) {
    pinned_ = true;
    if (bytes >= bytes_) return;
    bytes_ = bytes / kPage * kPage;
    const uint64_t end = begin_ + bytes_;
    for (auto it = free_.begin(); it != free_.end();) {
      if (it->first >= end) {
        it = free_.erase(it);
        continue;
      }
      it->second = std::min<size_t>(it->second, end - it->first);
      ++it;
    }
  }

 private:
  static constexpr size_t kPage = 4096;
  const uint64_t begin_;
  size_t bytes_, used_ = 0;
  uint64_t fresh_;
  std::map<uint64_t, size_t> free_, taken_;  // offset -> bytes
  bool pinned_ = false;
};

}  // namespace isthmus::link
