// Reductions as the simulated library does them: descending ranks, one rounding at the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/settings.hpp"

namespace rehearsal {

enum class Type { I8, U8, I32, U32, I64, U64, F16, F32, F64, BF16, E4M3, E5M2, I16, U16 };
enum class Reduction { Sum, Prod, Max, Min, Avg, ScaledSum };

REHEARSAL_API size_t type_size(Type t) noexcept;

// Every contribution may come with a factor of its own, a number of the type itself; only ScaledSum looks at it.
struct Contribution {
  const void *data = nullptr;
  uint64_t factor = 0;
};

// out[i] = contributions[n-1][i] o ... o contributions[0][i].
REHEARSAL_API void reduce(Type t, Reduction r, const Contribution *contributions, int n, void *out, size_t count);

}  // namespace rehearsal
