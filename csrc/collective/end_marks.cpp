#include "collective/end_marks.hpp"

#include "collective/device_side.hpp"

namespace isthmus::collective {

void order_behind(RankCore &core, DeviceSide &device, Operation *op, void *stream) noexcept {
  const SubmitLock::Held order = core.lock_for(core.collective_lock, op);
  if (!order || op->over() || core.failed() || !device.executor() || !op->end.mark) return;
  try {
    op->end.mark->hold(device.executor()->user(stream));
  } catch (const Error &e) { core.not_submitted(*op, e); }
}

}  // namespace isthmus::collective
