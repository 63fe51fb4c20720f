// Copies into memory that another processor reads next: slots and message rings.
//
// Two processors that share a cache: stores through the caches are best, because the reader finds the data in the cache.
// Two processors that share none (other sockets, other core complexes): stores through the caches have to take each line out of the reader's
// cache first, one way across the machine after another. Stores past the caches need not, and are several times as fast, although the data
// then lies in memory.
//
// Which of the two cases holds depends on who runs where. The case changes when threads (or virtual processors) move, and no table of the system
// tells a virtual machine. So the case is measured: of every sixteenth larger copy some lines go the one way and some the other, with the clock
// beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace isthmus {

enum class Stores : uint8_t { Auto, Cached, Streamed };

Stores stores_of(std::string_view name) noexcept;  // "cached", "streamed"; else Auto

// memcpy with stores past the caches where the processor has such stores, else as copy_bytes(). What is stored later, by a release, is
// seen after it. The ranges may not overlap.
void copy_streamed(void *to, const void *from, size_t bytes) noexcept;
bool has_streamed_copy() noexcept;

// One thread at a time.
class StreamingCopy {
 public:
  static constexpr size_t kLeast = 8192;  // shorter copies go through the caches
  static constexpr uint32_t kEvery = 16;  // copies for each that is measured

  explicit StreamingCopy(Stores mode = Stores::Auto) noexcept;
  // The ranges may not overlap. Any size, zero included.
  void copy(void *to, const void *from, size_t bytes) noexcept;
  // Where it is the turn of this copy to be measured, copies its beginning so; returns how many bytes. For those that copy the rest by other means.
  size_t begin(void *to, const void *from, size_t bytes) noexcept;
  // What the next copy of that size does: for those that write such memory by other means.
  bool streams(size_t bytes) const noexcept { return streams_ && bytes >= kLeast; }
  // Takes note of what a byte took in one measurement, in nanoseconds, and decides by the median of three. Stores past the caches make
  // the reader fetch from memory, so they have to be faster by far: mostly 1 to 6 times as fast is what they are where a cache is shared,
  // and 8 to 20 times where none is.
  void note(double cached, double streamed) noexcept;

 private:
  static constexpr size_t kMostMeasured = 4096;  // bytes stored through the caches; twice that past them
  size_t measure(std::byte *to, const std::byte *from, size_t bytes) noexcept;  // bytes that it has copied

  const bool measures_;
  bool streams_;
  uint32_t turn_ = 0;
  double times_as_fast_[3] = {};  // the last three
  unsigned next_ = 0;
};

}  // namespace isthmus
