// The flight recorder: the last operations of the process, in a ring. The ring is written without locks or allocation, and read at any time (on
// error, timeout or request). An entry that is overwritten while it is read is recognised by its stamp and left out.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace isthmus {

struct Record {
  uint64_t communicator = 0;  // the rank's serial number (engine/rank_core.hpp) in this process
  uint64_t sequence = 0;
  int64_t submitted_ns = 0, ended_ns = 0;  // monotonic
  uint64_t bytes = 0;
  int32_t peer_or_root = -1;
  uint8_t collective = 0, dtype = 0, op = 0, result = 0;
};

class Recorder {
 public:
  explicit Recorder(size_t entries) : size_(entries), cells_(std::make_unique<StampedEntry[]>(entries)) {}
  void add(const Record &r) noexcept;  // any thread
  std::vector<Record> read() const;    // oldest first
  uint64_t total() const noexcept { return next_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) StampedEntry {
    std::atomic<uint64_t> stamp{0};  // 2n+1 while entry n is written, 2n+2 once it stands
    std::atomic<uint64_t> words[7];
  };
  size_t size_;
  std::unique_ptr<StampedEntry[]> cells_;
  std::atomic<uint64_t> next_{0};
};

}  // namespace isthmus
