// A coalescing block (startCoalescing to endCoalescing). All calls of this thread between the two are one submission. A
// block is a group of isthmus.h: the block belongs to one thread, and may span several process groups.
//
// torch's _coalescing_manager does not end a block that an exception leaves. Such a block is abandoned: nothing of it is
// done, and the thread's next call notices and drops it.
#pragma once

#include <isthmus/isthmus.h>

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <exception>
#include <memory>

#include "work.hpp"

namespace isthmus::torch_face {

class Backend;

namespace coalescing {

// The operation of the block that this thread has open; null outside of blocks.
std::shared_ptr<PendingWork> current() noexcept;
// Whether there is one; drops an abandoned one. Throws where it was cancelled and has not ended: a call that was made at once,
// outside of its block, would be out of order.
bool open();
bool opened_by(const Backend &backend) noexcept;  // whether there is one, and that group has begun it too
void drop_if_abandoned() noexcept;

// `closed` says that the group was shut down: its block has no end any more.
void begin(const Backend &owner, std::shared_ptr<const std::atomic<bool>> closed);
// Submits at the outermost end; `attach` comes before that. Throws the first failure of the block.
using Attach = c10::function_ref<void(const std::shared_ptr<PendingWork> &operation, isthmus_work_t handle, bool outermost)>;
void end(const Backend &owner, Attach attach);
// Notes that a call inside the block failed. No operation of the block was or will be submitted. The block's later calls and
// each end() throw the same failure.
void fail(isthmus_result result, std::string text) noexcept;
void forked() noexcept;  // called in a forked child, where an open block is the parent's

// Every call of an operation has one. A call that is refused before it is recorded cancels the block too.
class CallInBlock {
 public:
  CallInBlock() = default;
  ~CallInBlock();
  CallInBlock(const CallInBlock &) = delete;
  CallInBlock &operator=(const CallInBlock &) = delete;

 private:
  const int exceptions_ = std::uncaught_exceptions();
};

}  // namespace coalescing

// Several calls in one submission. `each` makes the calls, and returns the first result that is not ISTHMUS_OK.
isthmus_result grouped(isthmus_work_t *work, c10::function_ref<isthmus_result()> each);

}  // namespace isthmus::torch_face
