// StepTracer notes what a rank's thread did for a collective and what it waited for, with times (ISTHMUS_TRACE). Without a ring it costs a look
// at a pointer.
//
// A step may be tried many times, and in between the thread sleeps or does other things. The time of a step is from its first try to its end.
//
// Thread rules: the thread with the right to execute.
#pragma once

#include <utility>

#include "base/clock.hpp"
#include "base/recorder.hpp"
#include "engine/operation.hpp"

namespace isthmus::collective {

class StepTracer {
 public:
  StepTracer(StepRing *ring, uint64_t communicator) noexcept
      : ring_(ring), communicator_(static_cast<uint32_t>(communicator)) {}
  bool on() const noexcept { return ring_ != nullptr; }
  // Something is tried: in `since_ns` the time of the first try.
  void tried(int64_t &since_ns) const noexcept {
    if (ring_ && since_ns == 0) since_ns = now_ns();
  }
  // It was done. A wait of less than a microsecond is not noted.
  void done(int64_t &since_ns, const engine::Operation &op, Traced what, int peer, const char *stage = nullptr,
            uint32_t chunk = 0, uint64_t bytes = 0) const noexcept {
    constexpr int64_t kLeastWaitNs = 1000;
    if (!ring_) return;
    const int64_t begun = std::exchange(since_ns, 0);
    if (begun == 0) return;
    const int64_t now = now_ns();
    if ((what != Traced::Copy && what != Traced::Reduce && now - begun < kLeastWaitNs)) return;
    ring_->add({op.sequence, begun, now, stage, bytes, communicator_, chunk, peer, what, {}});
  }
  // The step at which the host list of `op` stands.
  void done(engine::Operation &op) const noexcept {
    if (ring_) note_step(op);
  }

 private:
  void note_step(engine::Operation &op) const noexcept;
  StepRing *const ring_;
  const uint32_t communicator_;
};

}  // namespace isthmus::collective
