#include "collective/library_calls.hpp"

#include <span>

#include "collective/one_hop.hpp"

namespace isthmus::collective {

using plan::Memory;

namespace {

// AllToAllV: the blocks of the user's buffers that are those of the group's ranks. Memory of the device has the blocks back to back by position.
void exchange_blocks(QueuedWork &work, const Operation &op, const plan::Span &from) {
  const plan::Operands o = op.operands();
  const size_t n = work.ranks.size();
  const std::span<uint64_t> give(work.blocks.data(), n), give_at(give.data() + n, n), take(give.data() + 2 * n, n),
      take_at(give.data() + 3 * n, n);
  const bool copied = from.memory == Memory::Device;
  uint64_t at = 0;
  for (size_t j = 0; j < n; ++j) {
    const auto q = static_cast<size_t>(work.ranks[j]);
    give[j] = o.input_bytes[q];
    give_at[j] = copied ? at : o.input_displ[q];
    take[j] = o.output_bytes[q];
    take_at[j] = o.output_displ[q];
    at += give[j];
  }
  const std::byte *const base = copied ? work.borrowed + from.base : work.input;
  work.communicator->all_to_all_v(base, work.output, {give, give_at, take, take_at});
}

// The bits that the rank's factor has in the dtype, rounded as Isthmus rounds.
uint64_t factor_bits(const Call &c) noexcept {
  if (is_integer(c.dtype)) return c.factor;
  uint64_t bits = 0;
  switch (c.dtype) {  // one
    case DType::Float64: bits = 0x3ff0000000000000; break;
    case DType::Float32: bits = 0x3f800000; break;
    case DType::BFloat16: bits = 0x3f80; break;
    case DType::Float16: bits = 0x3c00; break;
    case DType::Float8E5M2: bits = 0x3c; break;
    default: bits = 0x38; break;
  }
  auto *const number = reinterpret_cast<std::byte *>(&bits);
  scale(number, number, dtype_size(c.dtype), c);
  return bits;
}

}  // namespace

void call_library(QueuedWork &work, const Operation &op, const plan::Step &step, const void *input, void *output,
                  uint64_t bytes) {
  ccl::IslandCommunicator &c = *work.communicator;
  const DType dtype = op.call.dtype;
  const uint64_t count = bytes / dtype_size(dtype);
  if (step.call == IslandCall::Send) work.place.sends_to(static_cast<uint32_t>(step.peer));
  else if (step.call == IslandCall::Recv) work.place.receives_from(static_cast<uint32_t>(step.peer));
  else ++work.place.calls;
  const bool by_rank = step.op == RedOp::PremulSum && op.call.op == RedOp::PremulSum;
  const ccl::Reduction by =
      by_rank ? ccl::Reduction::multiplied(factor_bits(op.call)) : ccl::Reduction(step.op, step.halvings);
  switch (step.call) {
    case IslandCall::AllReduce: return c.all_reduce(input, output, count, dtype, by);
    case IslandCall::Reduce: return c.reduce(input, output, count, dtype, by, step.peer);
    case IslandCall::Broadcast: return c.broadcast(output, count, dtype, step.peer);
    case IslandCall::AllGather: return c.all_gather(input, output, count, dtype);
    case IslandCall::ReduceScatter: return c.reduce_scatter(input, output, count, dtype, by);
    case IslandCall::AllToAll: return c.all_to_all(input, output, count, dtype);
    case IslandCall::AllToAllV: return exchange_blocks(work, op, op.plan->sources[step.source]);
    case IslandCall::Send: return c.send(input, count, dtype, step.peer);
    case IslandCall::Recv: return c.recv(output, count, dtype, step.peer);
  }
}

}  // namespace isthmus::collective
