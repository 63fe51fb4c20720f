// The values that the ranks send, and the values that they must receive. Each rank has a deterministic pattern. The exact
// reduction is computed here without the library. The pattern repeats after a prime number of elements. So a block in the
// wrong place shows.
#pragma once

#include <isthmus/isthmus.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace isthmus::bench {

// One period of elements, encoded in the type.
struct Period {
  std::vector<std::byte> bytes;
  size_t element = 0;  // bytes of one
};

class Pattern {
 public:
  // With an operation the values are small integers. Their reduction over `world` ranks is exact, or rounded once for AVG.
  // Without an operation the values are arbitrary bits, which must arrive unchanged.
  Pattern(isthmus_dtype dtype, std::optional<isthmus_redop> op, int world, uint64_t seed);
  const Period &of(int rank) const { return ranks_[static_cast<size_t>(rank)]; }
  const Period &result() const { return result_; }

 private:
  std::vector<Period> ranks_;
  Period result_;
};

// This rank's factor for PREMUL_SUM.
double premul_scale(int rank);

// The first writes `count` elements of the pattern, from element `offset` on. The second counts the elements that differ
// from these.
void fill(void *destination, const Period &period, uint64_t offset, uint64_t count);
uint64_t wrong(const void *data, const Period &period, uint64_t offset, uint64_t count);

}  // namespace isthmus::bench
