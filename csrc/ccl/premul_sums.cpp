#include "ccl/premul_sums.hpp"

#include <utility>

namespace isthmus::ccl::nccl {
namespace {

// The bits of 2^-halvings as a number of that type.
uint64_t power_bits(DType t, int halvings) noexcept {
  const int exponent = t == DType::Float8E4M3FN ? 4 : 5, mantissa = static_cast<int>(8 * dtype_size(t)) - 1 - exponent;
  const int biased = (1 << (exponent - 1)) - 1 - halvings;
  return biased > 0 ? uint64_t(biased) << mantissa : uint64_t{1} << (mantissa - 1 + biased);
}

}  // namespace

Result PremulSums::find(const NcclLibrary &library, Handle handle, DType dtype, Reduction by, StreamFailure &failure,
                        int *op) {
  const Functions &f = library.f;
  Multiplied &m = made_[static_cast<size_t>(dtype)];
  uint64_t factor = by.has_factor ? by.factor : power_bits(dtype, by.halvings);
  if (m.op >= 0 && m.factor != factor)
    if (const Result r = f.RedOpDestroy(std::exchange(m.op, -1), handle); r != kSuccess)
      return failure.keep(outcome(library, "end of an operation", r, handle)), r;
  if (m.op < 0) {
    m.factor = factor;
    const Result r = f.RedOpCreatePreMulSum(&m.op, &factor, type_number(dtype), kScalarOnHost, handle);
    if (r != kSuccess) return m.op = -1, failure.keep(outcome(library, "operation for premul_sum", r, handle)), r;
  }
  *op = m.op;
  return kSuccess;
}

}  // namespace isthmus::ccl::nccl
