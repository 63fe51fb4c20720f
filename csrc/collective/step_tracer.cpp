#include "collective/step_tracer.hpp"

namespace isthmus::collective {

using plan::StepKind;

void StepTracer::note(engine::Operation &op, StepRecord step) const noexcept {
  constexpr int64_t kLeastWaitNs = 1000;
  step.begun_ns = std::exchange(op.time.step_ns, 0);
  step.ended_ns = now_ns();
  const bool waits = step.what != Traced::Copy && step.what != Traced::Reduce;
  if (!waits || step.ended_ns - step.begun_ns >= kLeastWaitNs) ring_->add(step);
}

void StepTracer::note_step(engine::Operation &op) const noexcept {
  const plan::Step &step = op.run.at.step();
  const char *const stage = op.run.at.stage().name;
  const uint32_t chunk = op.run.at.chunk();
  const bool device = step.kind == StepKind::Wait && step.counter >= plan::kCounters;
  const auto bytes = [&] { return plan::extent_bytes(step.extent, chunk, op.operands()); };
  const auto works = [&](Traced what) {
    const uint64_t moved = bytes();
    if (moved == 0) op.time.step_ns = 0;  // it was skipped
    else done(op, what, -1, stage, chunk, moved);
  };
  switch (step.kind) {
    case StepKind::Move: return works(Traced::Copy);
    case StepKind::Reduce: return works(Traced::Reduce);
    case StepKind::Wait:
      if (device) return done(op, Traced::WaitsForDevice, op.run.blocked_on, stage, chunk);
      return done(op, Traced::WaitsForRank, step.peer, stage, chunk);
    case StepKind::Send: return done(op, Traced::WaitsForRoom, step.peer, stage, chunk, bytes());
    case StepKind::Recv: return done(op, Traced::WaitsForData, step.peer, stage, chunk, bytes());
    case StepKind::Taken: return done(op, Traced::WaitsUntilSent, op.run.blocked_on, stage, chunk);
    default: op.time.step_ns = 0;  // it takes no time
  }
}

}  // namespace isthmus::collective
