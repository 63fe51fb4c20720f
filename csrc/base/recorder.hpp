// Rings of what a process did last: the flight recorder, of its operations, and with ISTHMUS_TRACE the steps of its host lists. A ring is written
// without locks or allocation, and read at any time (on error, timeout or request). An entry that is overwritten while it is read is recognised by its
// stamp and left out.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace isthmus {

// Of entries of 48 or 56 bytes, none of them padding.
template <class T>
class StampedRing {
 public:
  explicit StampedRing(size_t entries) : size_(entries), cells_(std::make_unique<StampedEntry[]>(entries)) {}
  void add(const T &entry) noexcept {  // any thread
    const uint64_t n = next_.fetch_add(1, std::memory_order_relaxed);
    StampedEntry &c = cells_[n % size_];
    c.stamp.store(2 * n + 1, std::memory_order_release);
    const auto words = std::bit_cast<Words>(entry);
    for (size_t i = 0; i < words.size(); ++i) c.words[i].store(words[i], std::memory_order_release);
    c.stamp.store(2 * n + 2, std::memory_order_release);
  }
  std::vector<T> read() const {  // oldest first
    std::vector<T> out;
    const uint64_t end = next_.load(std::memory_order_acquire);
    for (uint64_t n = end > size_ ? end - size_ : 0; n < end; ++n) {
      const StampedEntry &c = cells_[n % size_];
      if (c.stamp.load(std::memory_order_acquire) != 2 * n + 2) continue;
      Words words;
      for (size_t i = 0; i < words.size(); ++i) words[i] = c.words[i].load(std::memory_order_acquire);
      if (c.stamp.load(std::memory_order_acquire) == 2 * n + 2) out.push_back(std::bit_cast<T>(words));
    }
    return out;
  }
  uint64_t total() const noexcept { return next_.load(std::memory_order_relaxed); }  // that were ever written
  size_t size() const noexcept { return size_; }

 private:
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0 && kWords <= 7);
  using Words = std::array<uint64_t, kWords>;
  struct alignas(64) StampedEntry {
    std::atomic<uint64_t> stamp{0};  // 2n+1 while entry n is written, 2n+2 once it stands
    std::atomic<uint64_t> words[kWords];
  };
  size_t size_;
  std::unique_ptr<StampedEntry[]> cells_;
  std::atomic<uint64_t> next_{0};
};

struct Record {
  uint64_t communicator = 0;  // the rank's serial number (engine/rank_core.hpp) in this process
  uint64_t sequence = 0;
  int64_t submitted_ns = 0, ended_ns = 0;  // monotonic
  uint64_t bytes = 0;
  int32_t peer_or_root = -1, tag = 0;
  uint8_t collective = 0, dtype = 0, op = 0, result = 0;
  uint32_t unused = 0;
};
using Recorder = StampedRing<Record>;

// What a rank's thread did, or waited for.
enum class Traced : uint8_t {
  Copy,
  Reduce,
  WaitsForRank,     // that `peer` has come as far, as its memory here says
  WaitsForData,     // of `peer`, by a link
  WaitsForRoom,     // for data at `peer`
  WaitsUntilSent,   // to `peer`: a link still reads the data
  WaitsForDevice,   // the rank's own. peer: a rank for which the library there waits, or -1
  WaitsForEarlier,  // until `peer` has ended the operation before
  WaitsForMemory,   // for its slots
  Count
};

struct StepRecord {
  uint64_t sequence = 0;               // of the operation
  int64_t begun_ns = 0, ended_ns = 0;  // monotonic
  const char *stage = nullptr;         // static text, or null
  uint64_t bytes = 0;
  uint32_t communicator = 0;  // as in Record
  uint32_t chunk = 0;
  int32_t peer = -1;
  Traced what = Traced::Copy;
  uint8_t unused[3] = {};
};
using StepRing = StampedRing<StepRecord>;

}  // namespace isthmus
