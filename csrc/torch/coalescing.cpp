#include "coalescing.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "interpreter.hpp"

namespace isthmus::torch_face {

namespace coalescing {

namespace {

struct CancelledBlock {
  isthmus_result result;
  std::string text;
};

struct CoalescedCalls {
  std::vector<const Backend *> owners;  // one for each begin() that has no end() yet
  std::shared_ptr<PendingWork> operation;
};

thread_local std::optional<CoalescedCalls> block;
constinit thread_local bool is_open = false;  // block.has_value(), without the cost of a thread's first look at `block`
thread_local std::optional<CancelledBlock> failed;  // the last block was cancelled and nobody was told

// Ends the library's group so that nothing of it is submitted: a call that fails inside a group cancels it.
void cancel() {
  static_cast<void>(isthmus_send(nullptr, nullptr, 0, ISTHMUS_UINT8, -1, -1, nullptr, nullptr));
  for (std::size_t i = 0; i < block->owners.size(); ++i) static_cast<void>(isthmus_group_end(nullptr));
  block.reset();
  is_open = false;
}

}  // namespace

bool open() noexcept { return is_open; }

void forked() noexcept {
  if (!is_open) return;
  ::new (&block) std::optional<CoalescedCalls>;  // what it held is not let go of here
  is_open = false;
}

std::shared_ptr<PendingWork> current() noexcept { return block ? block->operation : nullptr; }

void begin(const Backend &owner) {
  failed.reset();
  // The same group opened twice: an exception left the first block without its end.
  if (block && std::find(block->owners.begin(), block->owners.end(), &owner) != block->owners.end()) cancel();
  check(isthmus_group_begin());
  if (!block) block = CoalescedCalls{{}, PendingWork::make()};
  is_open = true;
  block->owners.push_back(&owner);
}

std::shared_ptr<PendingWork> end(const Backend &owner) {
  if (failed) {
    const CancelledBlock first = *std::exchange(failed, std::nullopt);
    raise(first.result, "the coalescing block was cancelled, and nothing of it was done: " + first.text);
  }
  if (!block || block->owners.back() != &owner)
    bad_argument("endCoalescing without startCoalescing on the same group and thread");
  block->owners.pop_back();
  std::shared_ptr<PendingWork> operation = block->operation;
  if (!block->owners.empty()) {
    check(isthmus_group_end(nullptr));
    return operation;
  }
  block.reset();
  is_open = false;
  isthmus_work_t handle = nullptr;
  const interpreter::WithoutGil without_gil;
  check(isthmus_group_end(&handle));
  operation->submitted(handle);
  return operation;
}

void fail(isthmus_result result, const std::string &text) {
  cancel();
  failed = CancelledBlock{result, text};
}

}  // namespace coalescing

isthmus_result grouped(isthmus_work_t *work, c10::function_ref<isthmus_result()> each) {
  if (const isthmus_result begun = isthmus_group_begin(); begun != ISTHMUS_OK) return begun;
  const isthmus_result called = each();
  const std::string text = called == ISTHMUS_OK ? "" : isthmus_last_error();
  const isthmus_result ended = isthmus_group_end(called == ISTHMUS_OK ? work : nullptr);
  if (called != ISTHMUS_OK && ended == ISTHMUS_OK) raise(called, text);
  return ended;
}

}  // namespace isthmus::torch_face
