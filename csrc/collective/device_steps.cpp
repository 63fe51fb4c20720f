#include "collective/device_steps.hpp"

#include "base/error.hpp"

namespace isthmus::collective {

using plan::Memory;
using plan::StepKind;

bool to_itself(const Operation &op, const plan::Step &step, uint32_t c) {
  const auto users = [&](const plan::Span &s) -> const std::byte * {
    const std::byte *const base = s.memory == Memory::Input    ? op.call.input
                                  : s.memory == Memory::Output ? op.call.output
                                                               : nullptr;
    return base ? base + plan::span_offset(*op.plan, s, c, op.operands()) : nullptr;
  };
  const std::byte *const from = users(op.plan->sources[step.source]);
  return from && from == users(step.dst);
}

bool works(const Operation &op, const plan::Step &step, uint32_t c) {
  const plan::Plan &p = *op.plan;
  if (!plan::runs_for(p, step, c, op.operands()) || plan::extent_bytes(step.extent, c, op.operands()) == 0) return false;
  // Where other memory stands for the user's each side has a place of its own.
  return step.kind != StepKind::Move || op.run.bounce || op.run.lent_input || op.run.lent_output || !to_itself(op, step, c);
}

bool begins_group(const Operation &op, const plan::Cursor &at) {
  const plan::Stage &stage = at.stage();
  const plan::Step *s = &at.step(), *const end = op.plan->steps.data() + stage.step + stage.steps;
  if (!stage.together || s->kind != StepKind::Ccl || !works(op, *s, at.chunk())) return false;
  if (s->call == IslandCall::Send || s->call == IslandCall::Recv) return true;
  for (++s; s != end && s->kind == StepKind::Ccl; ++s)
    if (works(op, *s, at.chunk())) return true;
  return false;
}

std::string standing_steps(const Operation &op, const HostDoors &doors, const DeviceSignals &signals) {
  if (signals.ended(op.sequence)) return {};
  const plan::Plan &p = *op.plan;
  const uint32_t chunks = plan::chunks_of(p, op.operands());
  struct Given {
    const plan::Step *step = nullptr;
    uint32_t chunk = 0;
  } first, second, last;
  size_t given = 0;
  const auto name = [&](const Given &g) {
    const std::string what = g.step->kind == StepKind::Move ? "a copy" : island_call_name(g.step->call);
    return chunks > 1 ? what + formatted(" of chunk {} of {}", g.chunk + 1, chunks) : what;
  };
  const auto text = [&]() -> std::string {
    if (given == 0) return {};
    if (given == 1) return name(last);
    const std::string more = given > 3 ? formatted(", {} more", given - 3) : std::string();
    return name(first) + (given > 2 ? ", " + name(second) : std::string()) + more + " or " + name(last);
  };
  for (plan::Cursor at(p.device, p.steps, chunks); !at.done(); at.next()) {
    const plan::Step &step = at.step();
    const uint32_t c = at.chunk();
    const int64_t v = step.mul * c + step.add;
    const uint64_t value = value_within(op.sequence, static_cast<uint64_t>(v));
    if (step.kind == StepKind::Wait) {
      if (v > 0 && !doors.is_ready(value)) return text();
    } else if (step.kind == StepKind::Post) {
      if (signals.posted(step.counter) < value) return text();
      given = 0;
    } else if (works(op, step, c)) {
      last = {&step, c};
      ++given;
      if (given == 1) first = last;
      if (given == 2) second = last;
    }
  }
  return text();
}

}  // namespace isthmus::collective
