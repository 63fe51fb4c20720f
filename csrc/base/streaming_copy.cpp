#include "base/streaming_copy.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>

#include "base/clock.hpp"
#include "base/copy.hpp"

namespace isthmus {
#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;

__attribute__((target("avx"))) void stream_lines(char *to, const char *from, size_t bytes) noexcept {
  for (; bytes >= 2 * kLine; to += 2 * kLine, from += 2 * kLine, bytes -= 2 * kLine) {
    const auto *in = reinterpret_cast<const __m256i_u *>(from);
    auto *out = reinterpret_cast<__m256i *>(to);
    const __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1), c = _mm256_loadu_si256(in + 2),
                  d = _mm256_loadu_si256(in + 3);
    _mm256_stream_si256(out, a), _mm256_stream_si256(out + 1, b), _mm256_stream_si256(out + 2, c),
        _mm256_stream_si256(out + 3, d);
  }
  std::memcpy(to, from, bytes);
}

void until_stored() noexcept { _mm_mfence(); }

const bool kAvx = __builtin_cpu_supports("avx") != 0;

}  // namespace

bool has_streamed_copy() noexcept { return kAvx; }

void copy_streamed(void *to, const void *from, size_t bytes) noexcept {
  const size_t head = (0 - reinterpret_cast<uintptr_t>(to)) & (kLine - 1);  // whole lines, or they are not combined
  if (!kAvx || bytes < head + 2 * kLine) return copy_bytes(to, from, bytes);
  std::memcpy(to, from, head);
  stream_lines(static_cast<char *>(to) + head, static_cast<const char *>(from) + head, bytes - head);
  _mm_sfence();
}
#else
namespace {
void until_stored() noexcept {}  // nothing is measured here
}  // namespace
bool has_streamed_copy() noexcept { return false; }
void copy_streamed(void *to, const void *from, size_t bytes) noexcept { copy_bytes(to, from, bytes); }
#endif

Stores stores_of(std::string_view name) noexcept {
  return name == "cached" ? Stores::Cached : name == "streamed" ? Stores::Streamed : Stores::Auto;
}

StreamingCopy::StreamingCopy(Stores mode) noexcept
    : measures_(mode == Stores::Auto && has_streamed_copy()), streams_(mode == Stores::Streamed && has_streamed_copy()) {}

void StreamingCopy::note(double cached, double streamed) noexcept {
  constexpr double kOn = 7, kOff = 5;
  times_as_fast_[next_++ % 3] = cached / std::max(streamed, 1e-9);
  const auto [x, y, z] = times_as_fast_;
  streams_ = std::max(std::min(x, y), std::min(std::max(x, y), z)) > (streams_ ? kOff : kOn);
}

size_t StreamingCopy::measure(std::byte *to, const std::byte *from, size_t bytes) noexcept {
  const size_t cached = std::min(bytes / 4, kMostMeasured), streamed = 2 * cached;
  // The source comes into the cache first: stores are timed, not loads.
  for (size_t i = 0; i < cached + streamed; i += 64) (void)*const_cast<const volatile std::byte *>(from + i);
  const int64_t start = now_ns();
  copy_bytes(to, from, cached);
  until_stored();
  const int64_t middle = now_ns();
  copy_streamed(to + cached, from + cached, streamed);
  const int64_t end = now_ns();
  note(static_cast<double>(middle - start) / static_cast<double>(cached),
       static_cast<double>(end - middle) / static_cast<double>(streamed));
  return cached + streamed;
}

size_t StreamingCopy::begin(void *to, const void *from, size_t bytes) noexcept {
  if (bytes < kLeast || !measures_ || turn_++ % kEvery != 0) return 0;
  return measure(static_cast<std::byte *>(to), static_cast<const std::byte *>(from), bytes);
}

void StreamingCopy::copy(void *to, const void *from, size_t bytes) noexcept {
  const size_t done = begin(to, from, bytes);
  auto *rest = static_cast<std::byte *>(to) + done;
  const auto *source = static_cast<const std::byte *>(from) + done;
  if (streams(bytes)) copy_streamed(rest, source, bytes - done);
  else copy_bytes(rest, source, bytes - done);
}

}  // namespace isthmus
