// The table of kernels that one instruction set provides. kernels.cpp is compiled once for each instruction set, and only its table is visible
// from outside. So no code made for a wide instruction set can end up in a part that runs everywhere. For the same reason this header must
// stay free of inline functions and of the standard library's templates.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace isthmus::reduce {

// What a kernel works on: the first 15 values of DType, in DType's order. Complex numbers are pairs of float32 or float64.
enum class Lane : uint8_t { I8, U8, I16, U16, I32, U32, I64, U64, Bool, F16, BF16, F32, F64, E4M3, E5M2 };
inline constexpr int kLanes = 15;

enum class Prim : uint8_t { Sum, Prod, Min, Max, And, Or, Xor, ComplexProd };
inline constexpr int kPrims = 8;

inline constexpr unsigned kMaxSources = 4;  // sources that one pass of a kernel reads

struct Job {
  const void *source[kMaxSources];
  unsigned sources;    // 1..kMaxSources
  void *dst;           // may equal any source exactly, where the elements have the same size
  void *copy;          // or nullptr
  size_t count;        // lanes
  double number;       // divisor (0: no division) of reduce and finish; factor of scale
  uint64_t whole = 0;  // factor of scale of integers
};
using Kernel = void (*)(const Job &) noexcept;

struct Table {
  const char *name;
  Kernel reduce[kLanes][kPrims];      // dst = round((source[0] op source[1] ...) / number), all of one type
  Kernel accumulate[kLanes][kPrims];  // narrow floats: dst (f32) = source[0] (f32) op source[1] (narrow)
  // Floats of 16 bits, sums alone, of two sources or more: dst (f32) = source[0] + source[1] ..., which are all narrow; of add[]
  // source[0] is f32.
  Kernel gather[kLanes], add[kLanes];
  Kernel widen[kLanes];   // narrow floats: dst (f32) = source[0]
  Kernel finish[kLanes];  // narrow floats: dst = round(source[0] (f32) / number); integers: dst = source[0] / number
  Kernel scale[kLanes];   // floats: dst = round(source[0] * number); integers: dst = source[0] * whole
  // Copy with non-temporal stores; the caller fences. nullptr where memcpy does it as well.
  void (*stream)(void *dst, const void *src, size_t bytes) noexcept;
};

// Those that were built for this processor family.
extern const Table kTableScalar;
extern const Table kTableSse4;
extern const Table kTableAvx2;
extern const Table kTableAvx512;
extern const Table kTableNeon;

}  // namespace isthmus::reduce
