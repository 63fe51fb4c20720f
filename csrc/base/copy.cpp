#include "base/copy.hpp"

#include <cstdint>

namespace isthmus {
#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;

using Loose = char __attribute__((vector_size(32), aligned(1), may_alias));
using Whole = char __attribute__((vector_size(32), may_alias));

// Writes whole lines, so that no store crosses from one to the next.
__attribute__((target("avx"))) void copy_avx(char *to, const char *from, size_t bytes) noexcept {
  const size_t head = (0 - reinterpret_cast<uintptr_t>(to)) & (kLine - 1);
  std::memcpy(to, from, kLine);
  to += head, from += head, bytes -= head;
  for (; bytes >= 4 * kLine; to += 4 * kLine, from += 4 * kLine, bytes -= 4 * kLine) {
    const auto *in = reinterpret_cast<const Loose *>(from);
    auto *out = reinterpret_cast<Whole *>(to);
    const Loose a = in[0], b = in[1], c = in[2], d = in[3], e = in[4], f = in[5], g = in[6], h = in[7];
    out[0] = a, out[1] = b, out[2] = c, out[3] = d;
    out[4] = e, out[5] = f, out[6] = g, out[7] = h;
  }
  std::memcpy(to, from, bytes);
}

const bool kAvx = __builtin_cpu_supports("avx") != 0;

}  // namespace

void copy_large(void *to, const void *from, size_t bytes) noexcept {
  if (kAvx && bytes >= kLargeCopy) copy_avx(static_cast<char *>(to), static_cast<const char *>(from), bytes);
  else std::memcpy(to, from, bytes);
}
#else
void copy_large(void *to, const void *from, size_t bytes) noexcept { std::memcpy(to, from, bytes); }
#endif
}  // namespace isthmus
