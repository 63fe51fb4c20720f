// The definition of every collective, and the volume that its algorithm must have: what a run is judged by. Shares nothing
// with the planner.
#pragma once

#include "prove.hpp"
#include "symbols.hpp"

namespace isthmus::prover {

bool reduces(plan::Collective c);
bool varies(plan::Collective c);
// Whether a group's library must not sum the numbers as they are: their sum may be out of the dtype's range, and the average is in it.
bool overflows(const plan::Request &r, size_t groups);

// Sizes and places of the blocks of one rank's buffers, as plan.hpp lists them. v-blocks get gaps between them.
struct Blocks {
  std::vector<uint64_t> input_displ, input_bytes, output_displ, output_bytes;
  plan::Operands operands() const { return {input_displ, input_bytes, output_displ, output_bytes}; }
};
Blocks blocks_of(const topology::Topology &t, const Operation &op, int rank);

// What block `block` of the output of `rank` must hold from position 0 on; bytes 0: nothing is said about it.
struct Expected {
  uint64_t bytes = 0;
  Content content;
};
Expected expected_of(const topology::Topology &t, const Operation &op, int index, int rank, uint32_t block,
                     Symbols &symbols);

// Bytes over all links, without tokens. `finished`: bytes that each group rounded (the owners' part of an all_reduce).
uint64_t bridge_bound(const topology::Topology &whole, const topology::Topology &t, const Operation &op,
                      const std::vector<uint64_t> &finished);
// Most bytes that tokens may add.
uint64_t token_bound(const topology::Topology &t, const Operation &op, uint64_t frames);

}  // namespace isthmus::prover
