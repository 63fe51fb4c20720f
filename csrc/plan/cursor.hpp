// Walks one list of a plan in the order of its steps: what plan.hpp says at its head, in one place. An executor is a switch over at.step().
//
//   for (Cursor at(plan.host, plan.steps, chunks); !at.done(); at.next()) run(at.step(), at.chunk());
//
// The plan stays where it is while a cursor walks it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/assert.hpp"
#include "plan/plan.hpp"

namespace isthmus::plan {

class Cursor {
 public:
  Cursor() = default;  // done
  Cursor(std::span<const Stage> stages, std::span<const Step> steps, uint32_t chunks) noexcept
      : stages_(stages), steps_(steps), chunks_(chunks) {
    uint32_t skew = 0;
    for (const Stage &s : stages_) skew = std::max(skew, s.skew);
    if (chunks_ != 0 && !stages_.empty()) end_ = chunks_ + skew;
    settle();
  }

  bool done() const noexcept { return turn_ >= end_; }
  const Stage &stage() const noexcept {
    ISTHMUS_ASSERT(!done(), "a cursor stands at a step until the end");
    return stages_[stage_];
  }
  const Step &step() const noexcept { return steps_[stage().step + step_]; }
  uint32_t chunk() const noexcept { return turn_ - stage().skew; }
  uint32_t turn() const noexcept { return turn_; }
  uint32_t chunks() const noexcept { return chunks_; }
  bool begins_stage() const noexcept { return step_ == 0; }  // the first step of the stage in this turn
  void next() noexcept {
    if (++step_ < stage().steps) return;
    step_ = 0;
    ++stage_;
    settle();
  }

 private:
  // To the next stage that has a chunk in this turn, or in a later one.
  void settle() noexcept {
    for (; !done(); ++turn_, stage_ = 0)
      for (; stage_ < stages_.size(); ++stage_) {
        const Stage &s = stages_[stage_];
        if (s.steps != 0 && turn_ >= s.skew && turn_ - s.skew < chunks_) return;
      }
  }

  std::span<const Stage> stages_;
  std::span<const Step> steps_;
  uint32_t chunks_ = 0, end_ = 0;
  uint32_t turn_ = 0, stage_ = 0, step_ = 0;
};

}  // namespace isthmus::plan
