// Reductions and copies on host memory: every dtype x op, SIMD, chosen at run time for the processor.
//
// The order is part of the contract:
//   1. In a group (island), contributions are reduced source by source (rank by rank).
//   2. The groups' partial results are reduced in order.
//   3. The result is rounded once, at the end. Until then everything is in accumulator(dtype).
// The same inputs give the same bits on every processor, for every count, alignment, thread and split of the range.
//   - float16, bfloat16, float8: accumulated in float32, rounded to nearest even. float8_e4m3fn out of range is NaN, as e4m3fn has no
//     infinity; ml_dtypes' conversion does the same. float8_e5m2 overflows to infinity.
//   - NaN in any contribution gives NaN (MIN and MAX too); results carry the canonical quiet NaN of the type.
//   - MIN and MAX take -0.0 < +0.0.
//   - Integers wrap. AVG: sum (wrapping), then divides toward zero. Floats: divides the sum in the accumulator type.
//   - BOOL: any non-zero byte is true; results are 0 or 1.
//   - The floating-point control word (FTZ, DAZ, rounding) of the calling thread does not matter: set to IEEE defaults inside
//     and restored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.hpp"

namespace isthmus::reduce {

struct Source {
  const void *data = nullptr;  // any alignment
  bool partial = false;        // elements are accumulator(dtype) (a partial result), not dtype
  uint32_t weight = 1;  // the source is multiplied by it in float32 before it is added; 1 where dtype is its own accumulator
};

// What one call of reduce() does: the sources in this rank's memory, and where their reduction goes.
struct LocalReduction {
  DType dtype;
  RedOp op;                          // Avg and PremulSum add (Premul scaling is `scale` below, done beforehand)
  std::span<const Source> sources;   // at least one; reduced in this order
  std::span<const uint32_t> groups;  // end index of each group, ascending, last == sources.size(); empty: one group
  void *dst = nullptr;               // may be exactly equal to one source's data (same element size), not overlap otherwise
  void *copy = nullptr;              // second destination for the same result, or nullptr
  bool partial = false;              // write accumulator(dtype), not finalised (no AVG division, no rounding)
  uint64_t divisor = 1;              // AVG: the result is divided by it (the number of ranks); used only when !partial
  bool stream_copy = false;          // hint: `copy` will not be read soon (non-temporal stores)
  bool stream_dst = false;           // likewise `dst`, or another processor reads it
};

// Reduces `count` elements. The combination must be one that combines(dtype, op) allows. Thread-safe, no allocation, no throw.
void reduce(const LocalReduction &task, size_t count) noexcept;

// dst[i] = round(float(src[i]) * factor) in dtype, factor converted to accumulator(dtype) first. dst may equal src.
void scale(void *dst, const void *src, size_t count, DType dtype, double factor) noexcept;
// The same of integers, which wrap: of the factor the bits count that the type has.
void scale_integers(void *dst, const void *src, size_t count, DType dtype, uint64_t factor) noexcept;

// memcpy with a hint: `stream` means the destination will not be read soon (non-temporal stores, fenced before return).
void copy(void *dst, const void *src, size_t bytes, bool stream) noexcept;

// Name of the instruction set in use: "avx512", "avx2", "sse4", "neon", "scalar". ISTHMUS_SIMD is no setting: tests force one
// with force_target(), which returns false where the processor lacks it. nullptr: back to automatic.
const char *target() noexcept;
bool force_target(const char *name) noexcept;

}  // namespace isthmus::reduce
