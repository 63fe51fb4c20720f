// A coalescing block (startCoalescing ... endCoalescing): what this thread calls between the two is one submission. It is a group of
// isthmus.h; like that, it belongs to a thread and may span several process groups.
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
// A call inside the block failed: nothing of the block was or will be submitted. end() will throw the same.
void fail(isthmus_result result, const std::string &text);
void forked() noexcept;  // in a forked child: an open block is the parent's

}  // namespace coalescing

// Several calls in one submission; `each` makes them and returns the first result that is not ISTHMUS_OK.
isthmus_result grouped(isthmus_work_t *work, c10::function_ref<isthmus_result()> each);

}  // namespace isthmus::torch_face
