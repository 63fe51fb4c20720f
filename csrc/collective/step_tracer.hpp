// StepTracer notes what a rank's thread did for a collective and what it waited for, with times (ISTHMUS_TRACE). Without a ring it costs a look
// at a pointer.
//
// Work is noted from its begin, and so is a receive, which may copy. A wait is noted from the first try that failed; in between the thread sleeps, or
// does other things.
//
// Thread rules: the thread with the right to execute.
#pragma once

#include <utility>

#include "base/clock.hpp"
#include "base/recorder.hpp"
#include "engine/operation.hpp"
#include "plan/plan.hpp"

namespace isthmus::collective {

enum class Outcome : uint8_t { Blocked, Moved, Ended };  // of one try to go on with an operation

class StepTracer {
 public:
  StepTracer(StepRing *ring, uint64_t communicator) noexcept
      : ring_(ring), communicator_(static_cast<uint32_t>(communicator)) {}
  // Work begins, or what is waited for is not there. The time of the first of these counts.
  void tried(engine::Operation &op) const noexcept {
    if (ring_ && op.time.step_ns == 0) op.time.step_ns = now_ns();
  }
  Outcome blocked(engine::Operation &op) const noexcept {
    tried(op);
    return Outcome::Blocked;
  }
  // What was tried is done. Nothing, where nothing was tried. A wait of less than a microsecond is not noted.
  void done(engine::Operation &op, Traced what, int peer, const char *stage = nullptr, uint32_t chunk = 0,
            uint64_t bytes = 0) const noexcept {
    if (ring_ && op.time.step_ns != 0) note(op, {op.sequence, 0, 0, stage, bytes, communicator_, chunk, peer, what, {}});
  }
  // A wait for what blocked the operation last.
  void done(engine::Operation &op, Traced what) const noexcept { done(op, what, op.run.blocked_on); }
  // The step at which the host list of `op` stands.
  void begins_step(engine::Operation &op) const noexcept {
    if (!ring_) return;
    const plan::StepKind kind = op.run.at.step().kind;
    if (kind == plan::StepKind::Move || kind == plan::StepKind::Reduce || kind == plan::StepKind::Recv) tried(op);
  }
  void done_step(engine::Operation &op) const noexcept {
    if (ring_ && op.time.step_ns != 0) note_step(op);
  }

 private:
  void note(engine::Operation &op, StepRecord step) const noexcept;
  void note_step(engine::Operation &op) const noexcept;
  StepRing *const ring_;
  const uint32_t communicator_;
};

}  // namespace isthmus::collective
