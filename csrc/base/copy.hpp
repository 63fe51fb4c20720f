// Copies of bytes through the caches, as fast whatever the addresses.
//
// From 4 KiB up the C library of most x86-64 systems copies with `rep movsb`. On AMD's processors `rep movsb` falls to 2 GB/s, a twentieth of its
// rate, where the destination stands up to 64 bytes past the source modulo 4096 (glibc's bug 30994). Copies between users' arrays and slots meet
// that case all the time: memory that malloc gives for large arrays starts 16 bytes past a page, and slots start on a page.
#pragma once

#include <cstddef>
#include <cstring>

namespace isthmus {

inline constexpr size_t kLargeCopy = 2048;  // below, the C library uses vectors itself

// In vectors, where the processor has wide ones.
void copy_large(void *to, const void *from, size_t bytes) noexcept;

// The two ranges may not overlap. Any alignment, any size, zero included.
inline void copy_bytes(void *to, const void *from, size_t bytes) noexcept {
  if (bytes >= kLargeCopy) copy_large(to, from, bytes);
  else if (bytes) std::memcpy(to, from, bytes);
}

}  // namespace isthmus
