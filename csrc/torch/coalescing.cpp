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

struct BlockOpening {
  const Backend *owner;
  std::shared_ptr<const std::atomic<bool>> closed;
  interpreter::Generator generator;
  bool abandoned() const noexcept { return *closed || generator.over(); }
};

struct CoalescedCalls {
  std::vector<BlockOpening> openings;  // those that have no end() yet
  std::shared_ptr<PendingWork> operation;
};

thread_local std::optional<CoalescedCalls> block;
constinit thread_local bool is_open = false;  // block.has_value(), without the cost of a thread's first look at `block`
thread_local std::optional<CancelledBlock> failed;  // the last block was cancelled and nobody was told

void close() noexcept {
  for (BlockOpening &opening : block->openings) opening.generator.let_go();
  block.reset();
  is_open = false;
}

// Ends the library's group so that nothing of it is submitted: a call that fails inside a group cancels it.
void cancel() noexcept {
  static_cast<void>(isthmus_send(nullptr, nullptr, 0, ISTHMUS_UINT8, -1, -1, nullptr, nullptr));
  for (std::size_t i = 0; i < block->openings.size(); ++i) static_cast<void>(isthmus_group_end(nullptr));
  close();
}

auto find(const Backend &owner) noexcept {
  auto &all = block->openings;
  return std::find_if(all.begin(), all.end(), [&](const BlockOpening &b) { return b.owner == &owner; });
}

}  // namespace

bool open() noexcept {
  if (is_open) drop_if_abandoned();
  return is_open;
}

bool opened_by(const Backend &backend) noexcept { return block && find(backend) != block->openings.end(); }

void drop_if_abandoned() noexcept {
  if (!is_open) return;
  const auto &all = block->openings;
  const auto gone = std::count_if(all.begin(), all.end(), [](const BlockOpening &b) { return b.abandoned(); });
  if (gone == 0) return;
  const bool all_gone = static_cast<std::size_t>(gone) == all.size();
  cancel();
  // The groups that are left come to their end().
  if (!all_gone) failed = CancelledBlock{ISTHMUS_ERR_ARGUMENT, "a block of another group inside it has no end"};
}

void forked() noexcept {
  if (!is_open) return;
  ::new (&block) std::optional<CoalescedCalls>;  // what it held is not let go of here
  is_open = false;
}

std::shared_ptr<PendingWork> current() noexcept { return block ? block->operation : nullptr; }

void begin(const Backend &owner, std::shared_ptr<const std::atomic<bool>> closed) {
  drop_if_abandoned();
  failed.reset();
  // The same group opened twice: an exception left the first block without its end.
  if (opened_by(owner)) cancel();
  check(isthmus_group_begin());
  if (!block) block = CoalescedCalls{{}, PendingWork::make()};
  is_open = true;
  block->openings.push_back({&owner, std::move(closed), interpreter::Generator::calling()});
}

void end(const Backend &owner, Attach attach) {
  drop_if_abandoned();
  if (failed) {
    const CancelledBlock first = *std::exchange(failed, std::nullopt);
    raise(first.result, "the coalescing block was cancelled, and nothing of it was done: " + first.text);
  }
  if (!block || block->openings.back().owner != &owner)
    bad_argument("endCoalescing without startCoalescing on the same group and thread");
  const std::shared_ptr<PendingWork> operation = block->operation;
  if (block->openings.size() > 1) {
    block->openings.back().generator.let_go();
    block->openings.pop_back();
    check(isthmus_group_end(nullptr));
    attach(operation, nullptr, false);
    return;
  }
  close();
  isthmus_work_t handle = nullptr;
  const interpreter::WithoutGil without_gil;
  check(isthmus_group_end(&handle));
  attach(operation, handle, true);
  operation->submitted(handle);
}

void fail(isthmus_result result, const std::string &text) {
  cancel();
  failed = CancelledBlock{result, text};
}

CallInBlock::~CallInBlock() {
  if (std::uncaught_exceptions() > exceptions_ && open()) fail(ISTHMUS_ERR_ARGUMENT, "a call in it was refused");
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
