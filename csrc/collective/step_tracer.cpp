#include "collective/step_tracer.hpp"

#include "plan/plan.hpp"

namespace isthmus::collective {

using plan::StepKind;

void StepTracer::note_step(engine::Operation &op) const noexcept {
  const plan::Step &step = op.run.at.step();
  const bool device = step.kind == StepKind::Wait && step.counter >= plan::kCounters;
  Traced what = Traced::Copy;
  switch (step.kind) {
    case StepKind::Move: break;
    case StepKind::Reduce: what = Traced::Reduce; break;
    case StepKind::Wait: what = device ? Traced::WaitsForDevice : Traced::WaitsForRank; break;
    case StepKind::Send: what = Traced::WaitsForRoom; break;
    case StepKind::Recv: what = Traced::WaitsForData; break;
    case StepKind::Taken: what = Traced::WaitsUntilSent; break;
    default: op.time.step_ns = 0; return;  // it takes no time
  }
  const bool sized = step.kind != StepKind::Wait && step.kind != StepKind::Taken;
  const uint64_t bytes = sized ? plan::extent_bytes(step.extent, op.run.at.chunk(), op.operands()) : 0;
  if (sized && bytes == 0) op.time.step_ns = 0;  // it was skipped
  const int peer = device || step.kind == StepKind::Taken ? op.run.blocked_on : step.peer;
  done(op.time.step_ns, op, what, peer, op.run.at.stage().name, op.run.at.chunk(), bytes);
}

}  // namespace isthmus::collective
