// Room for copies of what one stream of a TCP link owes: a ring, freed in the order in which the stream's pieces are confirmed.
//
// Once the stream is lost its pieces are confirmed in any order, by others. Then nothing is added until the room is empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace isthmus::link {

class CopyRoom {
 public:
  // The memory is not touched before it is used.
  void make(uint64_t bytes) {
    memory_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    bytes_ = bytes;
  }
  // So many bytes; null: there is no room. `taken`: for give_back().
  std::byte *take(uint64_t n, uint32_t &taken) noexcept {
    const uint64_t whole = std::max<uint64_t>((n + 63) / 64 * 64, 64);
    if (whole > bytes_ || scattered_) return nullptr;
    const uint64_t at = used_ % bytes_, skipped = at + whole > bytes_ ? bytes_ - at : 0;
    if (used_ + skipped + whole - freed_ > bytes_) return nullptr;
    taken = static_cast<uint32_t>(skipped + whole);
    used_ += taken;
    ++pieces_;
    return memory_.get() + (used_ - whole) % bytes_;
  }
  void give_back(uint32_t taken) noexcept {
    freed_ += taken;
    if (--pieces_ != 0) return;
    used_ = freed_ = 0;
    scattered_ = false;
  }
  void scatter() noexcept { scattered_ = true; }  // what is there may be given back in any order

 private:
  std::unique_ptr<std::byte[]> memory_;
  uint64_t bytes_ = 0, used_ = 0, freed_ = 0;
  uint32_t pieces_ = 0;
  bool scattered_ = false;
};

}  // namespace isthmus::link
