// The plan as data: the evaluation of extents and spans for one launch.
#include "plan/plan.hpp"

#include <algorithm>
#include <numeric>

namespace isthmus::plan {
namespace {
uint64_t block_bytes(Memory of, uint32_t block, const Operands &o) noexcept {
  const auto sizes = of == Memory::Input ? o.input_bytes : o.output_bytes;
  return block < sizes.size() ? sizes[block] : 0;
}
}  // namespace

uint32_t chunks_of(const Plan &plan, const Operands &operands) noexcept {
  if (!is_varying(plan.request.collective)) return plan.chunks;
  uint64_t largest = uint64_t{plan.chunks} * plan.chunk;
  for (uint64_t b : operands.input_bytes) largest = std::max(largest, b);
  for (uint64_t b : operands.output_bytes) largest = std::max(largest, b);
  return static_cast<uint32_t>(std::min<uint64_t>((largest + plan.chunk - 1) / plan.chunk, kMostChunks));
}

bool writes_past_caches(const Plan &plan, const Operands &operands) noexcept {
  if (!is_varying(plan.request.collective)) return true;
  const auto received = operands.output_bytes;
  return std::accumulate(received.begin(), received.end(), uint64_t{0}) >= plan.request.stream_bytes;
}

uint64_t divisor_of(RedOp op, int world) noexcept { return op == RedOp::Avg ? static_cast<uint64_t>(world) : 1; }

uint64_t extent_bytes(const Extent &e, uint32_t c, const Operands &operands) noexcept {
  if (e.of == Memory::Scratch) return e.length;
  const uint64_t at = e.base + e.stride * c, size = block_bytes(e.of, e.block, operands);
  return at < size ? std::min(e.length, size - at) : 0;
}

bool runs_for(const Plan &plan, const Step &step, uint32_t c, const Operands &operands) noexcept {
  if (step.when == When::Always) return true;
  if (step.when == When::FirstChunk) return c == 0;
  const uint64_t bytes =
      is_varying(plan.request.collective) ? block_bytes(step.extent.of, step.extent.block, operands) : plan.request.bytes;
  return ((uint64_t{c} + 1) * plan.chunk <= bytes) == (step.when == When::FullChunk);
}

uint64_t span_offset(const Plan &plan, const Span &s, uint32_t c, const Operands &operands) noexcept {
  const uint32_t slots = std::max(plan.slots, 1u);
  switch (s.memory) {
    case Memory::Ring: return s.base + plan.slot_bytes * (c % slots);
    case Memory::Device: return s.base + s.stride * (c % slots);
    case Memory::Scratch: return s.base + plan.scratch_stride * (c % slots);
    case Memory::Input:
      return (s.block < operands.input_displ.size() ? operands.input_displ[s.block] : 0) + s.base + s.stride * c;
    case Memory::Output:
      return (s.block < operands.output_displ.size() ? operands.output_displ[s.block] : 0) + s.base + s.stride * c;
  }
  return 0;
}

}  // namespace isthmus::plan
