#include "comm/call_blocks.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "comm/numbering.hpp"

namespace isthmus::comm {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 56;

// The number by which people know a rank.
uint64_t number_of(const CallRequest &r, uint64_t rank) {
  return r.numbering ? static_cast<uint64_t>(r.numbering->slot(static_cast<int>(rank))) : rank;
}

// Blocks that a collective writes must not share a byte: nothing decides which rank's byte would stay. Ascending blocks, as nearly all are, are
// looked at in their order. Other blocks are sorted first.
void check_apart(const CallRequest &r, const char *name, uint64_t world) {
  const uint64_t *const counts = r.recv_counts, *const displs = r.recv_displs;
  uint64_t end = 0, last = 0;
  bool ascending = true;
  for (uint64_t b = 0; b < world && ascending; ++b) {
    if (counts[b] == 0) continue;
    ascending = displs[b] >= end;
    end = displs[b] + counts[b];
  }
  if (ascending) return;
  static thread_local std::vector<uint64_t> order;
  order.clear();
  for (uint64_t b = 0; b < world; ++b)
    if (counts[b] != 0) order.push_back(b);
  std::sort(order.begin(), order.end(), [&](uint64_t a, uint64_t b) { return displs[a] < displs[b]; });
  end = 0;
  for (const uint64_t b : order) {
    if (displs[b] < end)
      fail(Code::Argument,
           "{}: the blocks that are received from rank {} ({} elements at {}) and from rank {} ({} at {}) overlap", name,
           number_of(r, last), counts[last], displs[last], number_of(r, b), counts[b], displs[b]);
    end = displs[b] + counts[b];
    last = b;
  }
}

}  // namespace

uint64_t to_bytes(const char *name, uint64_t count, uint64_t size, uint64_t times) {
  constexpr uint64_t kFew = uint64_t{1} << 32, kFewRanks = uint64_t{1} << 16;
  if (count < kFew && times < kFewRanks) return count * size;  // no division on the way of a small operation
  if (count > kMaxBytes / size / std::max<uint64_t>(times, 1))
    fail(Code::Argument, "{}: a count of {} elements{} is negative or too large", name, static_cast<int64_t>(count),
         times > 1 ? formatted(" for each of {} ranks", times) : "");
  return count * size;
}

void fill_blocks(const CallRequest &r, int me, int world, engine::Operation &op) {
  const auto ranks = static_cast<uint64_t>(world);
  const uint64_t size = dtype_size(op.call.dtype);
  const char *name = collective_name(r.collective);
  const CollectiveTraits &what = traits(r.collective);
  const auto equal = [&](Blocks kind) {
    const uint64_t blocks = block_count(kind, world);
    for (uint64_t b = 0; b < blocks; ++b)
      op.blocks.values.push_back((kind == Blocks::OnePerRank ? number_of(r, b) : 0) * op.call.bytes);
    for (uint64_t b = 0; b < blocks; ++b) op.blocks.values.push_back(op.call.bytes);
    return static_cast<uint32_t>(blocks);
  };
  const auto listed = [&](const uint64_t *counts, const uint64_t *displs) {
    uint64_t at = 0;
    for (uint64_t b = 0; b < ranks; ++b) {
      const uint64_t bytes = to_bytes(name, counts[b], size, 1);
      op.blocks.values.push_back(displs ? to_bytes(name, displs[b], size, 1) : at);
      at += bytes;
      if (at > kMaxBytes) fail(Code::Argument, "{}: the counts add up to more than memory can hold", name);
    }
    for (uint64_t b = 0; b < ranks; ++b) {
      op.blocks.values.push_back(counts[b] * size);
      op.call.bytes = std::max(op.call.bytes, counts[b] * size);
    }
    return static_cast<uint32_t>(ranks);
  };
  const auto own = [&](uint64_t bytes) {
    op.blocks.values.push_back(0);
    op.blocks.values.push_back(bytes);
    return 1u;
  };
  // One side of the call. A single block of a call with counts is what the other side's list says of this rank.
  const auto side = [&](Blocks blocks, const uint64_t *counts, const uint64_t *displs, const uint64_t *others) {
    if (!what.varying) return equal(blocks);
    return blocks == Blocks::One ? own(to_bytes(name, others[me], size, 1)) : listed(counts, displs);
  };
  op.blocks.values.clear();
  op.blocks.input = side(what.input, r.send_counts, r.send_displs, r.recv_counts);
  op.blocks.output = side(what.output, r.recv_counts, r.recv_displs, r.send_counts);
  if (!what.varying || what.output == Blocks::One) return;
  if (r.recv_displs && writes_output(r.collective, me, r.root)) check_apart(r, name, ranks);
  if (what.input == Blocks::OnePerRank && r.send_counts[me] != r.recv_counts[me])
    fail(Code::Argument, "{}: rank {} sends itself {} elements but expects {}", name,
         number_of(r, static_cast<uint64_t>(me)), r.send_counts[me], r.recv_counts[me]);
}

void check_aliasing(const char *name, const engine::Operation &op, int me) {
  const auto o = op.operands();
  const auto own = static_cast<size_t>(me);
  const size_t inputs = o.input_bytes.size(), outputs = o.output_bytes.size();
  const auto start = [](const std::byte *base, uint64_t at) { return reinterpret_cast<uintptr_t>(base) + at; };
  struct Range {
    uintptr_t first = UINTPTR_MAX, end = 0;
  } input, output;  // of all blocks
  const auto hull = [&](Range &r, const std::byte *base, std::span<const uint64_t> at, std::span<const uint64_t> bytes) {
    for (size_t b = 0; b < bytes.size(); ++b) {
      if (bytes[b] == 0) continue;
      r.first = std::min(r.first, start(base, at[b]));
      r.end = std::max(r.end, start(base, at[b]) + bytes[b]);
    }
  };
  hull(input, op.call.input, o.input_displ, o.input_bytes);
  hull(output, op.call.output, o.output_displ, o.output_bytes);
  if (input.first >= output.end || output.first >= input.end) return;
  for (size_t i = 0; i < inputs; ++i)
    for (size_t k = 0; k < outputs; ++k) {
      const uintptr_t a = start(op.call.input, o.input_displ[i]), b = start(op.call.output, o.output_displ[k]);
      if (o.input_bytes[i] == 0 || o.output_bytes[k] == 0 || a >= b + o.output_bytes[k] || b >= a + o.input_bytes[i])
        continue;
      // In place a block lies on that of its number, and where the one side has a single block, on this rank's own.
      if (a == b && (inputs == outputs ? i == k : inputs == 1 ? k == own : i == own)) continue;
      fail(Code::Argument,
           "{}: send ({} bytes at {}) and recv ({} bytes at {}) overlap, and the call is not in place so (isthmus.h); give "
           "buffers that do not overlap",
           name, o.input_bytes[i], reinterpret_cast<const void *>(a), o.output_bytes[k], reinterpret_cast<const void *>(b));
    }
}

}  // namespace isthmus::comm
