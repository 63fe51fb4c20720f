#include "base/recorder.hpp"

namespace isthmus {

void Recorder::add(const Record &r) noexcept {
  const uint64_t n = next_.fetch_add(1, std::memory_order_relaxed);
  StampedEntry &c = cells_[n % size_];
  c.stamp.store(2 * n + 1, std::memory_order_release);
  const uint64_t words[7] = {
      r.communicator,
      r.sequence,
      static_cast<uint64_t>(r.submitted_ns),
      static_cast<uint64_t>(r.ended_ns),
      r.bytes,
      static_cast<uint32_t>(r.peer_or_root),
      uint64_t{r.collective} | uint64_t{r.dtype} << 8 | uint64_t{r.op} << 16 | uint64_t{r.result} << 24};
  for (int i = 0; i < 7; ++i) c.words[i].store(words[i], std::memory_order_release);
  c.stamp.store(2 * n + 2, std::memory_order_release);
}

std::vector<Record> Recorder::read() const {
  std::vector<Record> out;
  const uint64_t end = next_.load(std::memory_order_acquire);
  for (uint64_t n = end > size_ ? end - size_ : 0; n < end; ++n) {
    const StampedEntry &c = cells_[n % size_];
    if (c.stamp.load(std::memory_order_acquire) != 2 * n + 2) continue;
    uint64_t w[7];
    for (int i = 0; i < 7; ++i) w[i] = c.words[i].load(std::memory_order_acquire);
    if (c.stamp.load(std::memory_order_acquire) != 2 * n + 2) continue;
    Record r{w[0], w[1], static_cast<int64_t>(w[2]), static_cast<int64_t>(w[3]), w[4], static_cast<int32_t>(w[5]), 0, 0,
             0,    0};
    r.collective = static_cast<uint8_t>(w[6]);
    r.dtype = static_cast<uint8_t>(w[6] >> 8);
    r.op = static_cast<uint8_t>(w[6] >> 16);
    r.result = static_cast<uint8_t>(w[6] >> 24);
    out.push_back(r);
  }
  return out;
}

}  // namespace isthmus
