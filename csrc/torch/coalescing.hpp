// A coalescing block (startCoalescing to endCoalescing). All calls of this thread between the two are one submission. A
// block is a group of isthmus.h: the block belongs to one thread, and may span several process groups.
#pragma once

#include <isthmus/isthmus.h>

#include <c10/util/FunctionRef.h>

#include <memory>

#include "work.hpp"

namespace isthmus::torch_face {

class Backend;

namespace coalescing {

// The operation of the block that this thread has open; null outside of blocks.
std::shared_ptr<PendingWork> current() noexcept;
bool open() noexcept;  // whether there is one

void begin(const Backend &owner);
// Submits at the outermost end. Throws the first failure of the block.
std::shared_ptr<PendingWork> end(const Backend &owner);
// Notes that a call inside the block failed. No operation of the block was or will be submitted. end() will throw the same
// failure.
void fail(isthmus_result result, const std::string &text);
void forked() noexcept;  // called in a forked child, where an open block is the parent's

}  // namespace coalescing

// Several calls in one submission. `each` makes the calls, and returns the first result that is not ISTHMUS_OK.
isthmus_result grouped(isthmus_work_t *work, c10::function_ref<isthmus_result()> each);

}  // namespace isthmus::torch_face
