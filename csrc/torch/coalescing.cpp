#include "coalescing.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "errors.hpp"
#include "interpreter.hpp"

namespace isthmus::torch_face {

namespace coalescing {

namespace {

struct BlockOpening {
  const Backend *owner;
  std::shared_ptr<const std::atomic<bool>> closed;
  interpreter::Generator generator;
  bool abandoned() const noexcept { return *closed || generator.over(); }
};
using Openings = std::vector<BlockOpening>;  // those that have no end() yet, outermost first

struct CoalescedCalls {
  Openings openings;
  std::shared_ptr<PendingWork> operation;
};

struct CancelledBlock {
  isthmus_result result;
  std::string text;
  Openings openings;  // never empty
};

constexpr const char *kNoEnd = "a block of another group inside it has no end";

enum class Standing : std::uint8_t { None, Open, Cancelled };

thread_local std::optional<CoalescedCalls> block;           // of Standing::Open
thread_local std::optional<CancelledBlock> cancelled;       // of Standing::Cancelled
constinit thread_local Standing standing = Standing::None;  // without the cost of a thread's first look at the two

void let_go(Openings &all, Openings::iterator from) noexcept {
  std::for_each(from, all.end(), [](BlockOpening &b) { b.generator.let_go(); });
  all.erase(from, all.end());
}

Openings close() noexcept {
  Openings openings = std::move(block->openings);
  block.reset();
  standing = Standing::None;
  return openings;
}

// Ends the library's group so that nothing of it is submitted: a call that fails inside a group cancels it.
Openings cancel() noexcept {
  static_cast<void>(isthmus_send(nullptr, nullptr, 0, ISTHMUS_UINT8, -1, -1, nullptr, nullptr));
  for (std::size_t i = 0; i < block->openings.size(); ++i) static_cast<void>(isthmus_group_end(nullptr));
  return close();
}

auto find(Openings &all, const Backend &owner) noexcept {
  return std::find_if(all.begin(), all.end(), [&](const BlockOpening &b) { return b.owner == &owner; });
}

// Where code has left a block by an exception, it has left the blocks inside it too, though no generator may tell of those.
void drop_abandoned(Openings &all) noexcept {
  bool left = false;
  auto kept = all.begin();
  for (BlockOpening &b : all) {
    left |= b.generator.over();
    if (b.abandoned() || (left && !b.generator.any())) b.generator.let_go();
    else if (BlockOpening &to = *kept++; &to != &b) to = std::move(b);
  }
  all.erase(kept, all.end());
}

// The openings from this one on have come to their end, and the thread's block is over with the last of them.
void leave_cancelled(Openings::iterator from) noexcept {
  let_go(cancelled->openings, from);
  if (!cancelled->openings.empty()) return;
  cancelled.reset();
  standing = Standing::None;
}

}  // namespace

bool open() {
  if (standing == Standing::None) return false;
  drop_if_abandoned();
  if (standing == Standing::Cancelled)
    raise(cancelled->result, "this thread's coalescing block was cancelled, and nothing of it will be done: " +
                                 cancelled->text + "; leave the block first");
  return standing == Standing::Open;
}

bool opened_by(const Backend &backend) noexcept { return block && find(block->openings, backend) != block->openings.end(); }

void drop_if_abandoned() noexcept {
  if (standing == Standing::None) return;
  if (standing == Standing::Open) {
    const auto &all = block->openings;
    if (std::none_of(all.begin(), all.end(), [](const BlockOpening &b) { return b.abandoned(); })) return;
    fail(ISTHMUS_ERR_ARGUMENT, kNoEnd);
  }
  drop_abandoned(cancelled->openings);  // the groups that are left come to their end()
  leave_cancelled(cancelled->openings.end());
}

void forked() noexcept {
  if (standing == Standing::None) return;
  ::new (&block) std::optional<CoalescedCalls>;  // what the two held is not let go of here
  ::new (&cancelled) std::optional<CancelledBlock>;
  standing = Standing::None;
}

std::shared_ptr<PendingWork> current() noexcept { return block ? block->operation : nullptr; }

void begin(const Backend &owner, std::shared_ptr<const std::atomic<bool>> closed) {
  drop_if_abandoned();
  // The same group opened twice: an exception left the first block without its end, and those inside it.
  if (opened_by(owner)) fail(ISTHMUS_ERR_ARGUMENT, kNoEnd);
  if (standing == Standing::Cancelled) {
    leave_cancelled(find(cancelled->openings, owner));
    // A block inside a cancelled one. Its calls and its end() say so; torch's manager, which has noted it already, could not take that from here.
    if (cancelled) return cancelled->openings.push_back({&owner, std::move(closed), interpreter::Generator::calling()});
  }
  check(isthmus_group_begin());
  if (!block) block = CoalescedCalls{{}, PendingWork::make()};
  standing = Standing::Open;
  block->openings.push_back({&owner, std::move(closed), interpreter::Generator::calling()});
}

void end(const Backend &owner, Attach attach) {
  drop_if_abandoned();
  if (standing == Standing::Open && block->openings.back().owner != &owner && opened_by(owner))
    fail(ISTHMUS_ERR_ARGUMENT, kNoEnd);
  if (standing == Standing::Cancelled) {
    const auto of_owner = find(cancelled->openings, owner);
    if (of_owner != cancelled->openings.end()) {
      const isthmus_result first = cancelled->result;
      const std::string text = "the coalescing block was cancelled, and nothing of it was done: " + cancelled->text;
      leave_cancelled(of_owner);
      raise(first, text);
    }
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
  Openings ended = close();
  let_go(ended, ended.begin());
  isthmus_work_t handle = nullptr;
  const interpreter::WithoutGil without_gil;
  check(isthmus_group_end(&handle));
  attach(operation, handle, true);
  operation->submitted(handle);
}

void fail(isthmus_result result, std::string text) noexcept {
  cancelled = CancelledBlock{result, std::move(text), cancel()};
  standing = Standing::Cancelled;
}

CallInBlock::~CallInBlock() {
  if (std::uncaught_exceptions() == exceptions_) return;
  drop_if_abandoned();
  if (standing == Standing::Open) fail(ISTHMUS_ERR_ARGUMENT, "a call in it was refused");
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
