#include "collective/library_calls.hpp"

#include <span>

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

}  // namespace

void call_library(QueuedWork &work, const Operation &op, const plan::Step &step, const void *input, void *output,
                  uint64_t bytes) {
  ccl::IslandCommunicator &c = *work.communicator;
  const DType dtype = op.call.dtype;
  const uint64_t count = bytes / dtype_size(dtype);
  const ccl::Reduction by{step.op, step.halvings};
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
