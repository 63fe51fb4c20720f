// The operations that the bench runs: shapes, the call, the input, the check, and the least traffic that an operation needs.
#pragma once

#include <isthmus/isthmus.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "pattern.hpp"

namespace isthmus::bench {

enum class Collective {
  AllReduce,
  Reduce,
  Broadcast,
  AllGather,
  AllGatherV,
  ReduceScatter,
  AllToAll,
  AllToAllV,
  Gather,
  Scatter,
  SendRecv,
  Barrier,
  Count
};

const char *collective_name(Collective c);
// The collectives of a text: one name, several names with commas, or "all". Other spellings are taken, with a hint. Throws
// invalid_argument.
std::vector<Collective> parse_collectives(const std::string &text, std::vector<std::string> &hints);
bool reduces(Collective c);
bool rooted(Collective c);
bool can_run_in_place(Collective c);

// A failed call of the library.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
void check(isthmus_result result, const char *what);  // throws LibraryError with the library's own text

// One row of the table, on one rank. Sizes are in elements unless the name says bytes.
struct Task {
  Collective collective;
  isthmus_dtype dtype;
  isthmus_redop op;
  int root, rank, world;
  uint64_t count;  // nccl-tests' count column: per peer for all_gather, reduce_scatter, all_to_all, gather, scatter
  uint64_t send_count, recv_count;                 // whole buffers of this rank
  std::vector<uint64_t> send_counts, recv_counts;  // of the v-collectives, per rank
  uint64_t size_bytes;                             // nccl-tests' size column, and what algbw is computed from
  double bus_factor;                               // busbw = algbw * bus_factor
  std::byte *a = nullptr, *b = nullptr;            // a: send; b: receive, and both in place

  size_t element() const { return isthmus_dtype_size(dtype); }
};

// Shapes a row of about `bytes` bytes. Blocks are cut to 16 bytes, as nccl-tests does, but never to nothing.
Task make_task(Collective c, uint64_t bytes, isthmus_dtype dtype, isthmus_redop op, int root, int rank, int world);

// The least number of bytes that must cross the memory bus, for all ranks together: every input is read once, every output
// written once.
double memory_traffic(const Task &task, bool in_place);
// The least number of bytes that must cross between two islands, in the busier direction. `island` has every rank's island,
// 0 or 1.
double bridge_traffic(const Task &task, const std::vector<int> &island);

isthmus_result call(isthmus_comm_t comm, const Task &task, bool in_place);

// The first writes this rank's input, and rubbish in the place of the result. The second counts this rank's wrong elements
// afterwards.
void prepare(const Task &task, const Pattern &pattern, bool in_place);
uint64_t verify(const Task &task, const Pattern &pattern, bool in_place);

}  // namespace isthmus::bench
