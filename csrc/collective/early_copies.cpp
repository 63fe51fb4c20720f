#include "collective/early_copies.hpp"

#include <algorithm>

namespace isthmus::collective {

// Both operations must post kStaged on the second stream: a host list would take what a later operation posts for its own, where its own came from
// the first stream. Memory that stands for the user's is filled and emptied on the first stream.
bool EarlyCopies::may(const Operation &op) const noexcept {
  return op.plan->comes_early && beside_ && !op.run.bounce && !op.run.lent_input && !op.run.lent_output;
}

bool EarlyCopies::stands_beside(uint32_t chunks) noexcept { return beside_ = work_.beside && chunks > 1; }

EarlyCopies::Memories EarlyCopies::memories_of(const Operation &op) const noexcept {
  const plan::Plan &p = *op.plan;
  const auto part = [](uintptr_t begin, uint64_t bytes) { return MemoryPart{begin, begin + bytes}; };
  return {part(reinterpret_cast<uintptr_t>(work_.input), op.given_input()),
          part(reinterpret_cast<uintptr_t>(work_.output), op.given_output()), part(op.run.ring, p.slots * p.slot_bytes),
          part(op.run.scratch, std::max<uint64_t>(p.slots, 1) * p.scratch_stride)};
}

bool EarlyCopies::come(const Operation &op) {
  if (!may(op) || last_.sequence == 0 || last_.sequence + 1 != op.sequence) return false;
  const Memories mine = memories_of(op), &before = last_.memories;
  if (mine.input.meets(before.output) || mine.output.meets(before.output) || mine.slots.meets(before.slots) ||
      mine.scratch.meets(before.scratch))
    return false;
  if (!work_.ties.also(*work_.beside)) return false;
  work_.doors.pass_go(last_.sequence, *work_.beside);
  return true;
}

void EarlyCopies::given(const Operation &op) noexcept {
  if (!may(op)) return forget();
  last_.sequence = op.sequence;
  last_.memories = memories_of(op);
}

}  // namespace isthmus::collective
