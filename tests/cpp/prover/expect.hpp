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

// Sizes and places of the blocks of one rank's buffers, as plan.hpp lists them. v-blocks, and blocks that lie apart, get gaps between them.
struct Blocks {
  std::vector<uint64_t> input_displ, input_bytes, output_displ, output_bytes;
  plan::Operands operands() const { return {input_displ, input_bytes, output_displ, output_bytes}; }
};
Blocks blocks_of(const topology::Topology &t, const Operation &op, int rank);

// Whether the two ranks share memory, as the topology's header says.
bool share(const topology::Topology &t, int a, int b);
// Whether groups, some with libraries, meet on several hosts in an operation that then goes by slots inside each host, and by links between hosts
// alone. `t`: on which it is planned.
bool meets_on_hosts(const topology::Topology &t, const Operation &op);
// Whether it is a sum of contributions host by host, and which host has a contribution is the planner's affair: an island has ranks on several.
bool pieces_say_the_order(const topology::Topology &t, const Operation &op);
// Whether two ranks that share memory give each other no frame.
bool no_frames_inside(const topology::Topology &t, const Operation &op);

// What block `block` of the output of `rank` must hold from position 0 on; bytes 0: nothing is said about it.
struct Expected {
  uint64_t bytes = 0;
  Content content;
};
Expected expected_of(const topology::Topology &t, const Operation &op, int index, int rank, uint32_t block,
                     Symbols &symbols);

// Of an all_reduce: every group rounds all of it, and not each byte one group.
bool finishes_everywhere(const topology::Topology &t, const Operation &op);
// Bytes over all links, without tokens: so many, or at most so many where groups meet on hosts. `finished`: bytes that each group rounded (the owners' part of an all_reduce).
uint64_t bridge_bound(const topology::Topology &whole, const topology::Topology &t, const Operation &op,
                      const std::vector<uint64_t> &finished);
// Most bytes that tokens may add.
uint64_t token_bound(const topology::Topology &t, const Operation &op, uint64_t frames);

}  // namespace isthmus::prover
