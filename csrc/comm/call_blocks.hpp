// The blocks of a call: from counts of elements to places and sizes in bytes, and what must not overlap.
#pragma once

#include "comm/call_request.hpp"
#include "engine/operation.hpp"

namespace isthmus::comm {

// `count` elements of `size` bytes, `times` of them. Error(Argument) where that is more than memory can hold or less than nothing. `name`, here
// and below: the collective, for the error's text.
uint64_t to_bytes(const char *name, uint64_t count, uint64_t size, uint64_t times);

// Fills op.blocks for rank `me` of `world`: blocks of input and output as the definition of the collective says. Displacements default to back
// to back; of equal counts on a communicator with holes each block lies where its slot says. Of a v-collective, call.bytes becomes the size of the largest block. Error(Argument): a count is too large, blocks that are written
// overlap, or this rank sends itself more or less than the rank expects of itself.
void fill_blocks(const CallRequest &request, int me, int world, engine::Operation &op);

// What rank `me` gives and what the rank gets must not share a byte, but where the call's in place puts the one onto the other. Else what is
// read would depend on how far the copies have come. Error(Argument). The blocks are filled.
void check_aliasing(const char *name, const engine::Operation &op, int me);

}  // namespace isthmus::comm
