// Reductions of the simulated collective libraries. They combine the ranks in descending order, and round small types once, at the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/settings.hpp"

namespace rehearsal {

enum class Type { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, E4M3, E5M2, I16, U16 };
enum class Reduction { Sum, Prod, Max, Min, Avg, ScaledSum };

REHEARSAL_API size_t type_size(Type t) noexcept;  // bytes

// What one rank contributes. `factor`: the bits of a number of the reduced type, by which ScaledSum multiplies the rank's elements.
struct Contribution {
  const void *data = nullptr;
  uint64_t factor = 0;
};

// out[i] = contributions[n-1][i] o ... o contributions[0][i], for `count` elements of `n` ranks. Avg divides the sum by `n`.
REHEARSAL_API void reduce(Type t, Reduction r, const Contribution *contributions, int n, void *out, size_t count);

}  // namespace rehearsal
