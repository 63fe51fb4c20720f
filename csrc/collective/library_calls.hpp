// The calls of a vendor's library that steps of a device list make.
#pragma once

#include <cstdint>

#include "collective/queued_work.hpp"
#include "collective/engine_names.hpp"

namespace isthmus::collective {

// The call of `step` on that memory, of `bytes` in the step's extent.
void call_library(QueuedWork &work, const Operation &op, const plan::Step &step, const void *input, void *output,
                  uint64_t bytes);

}  // namespace isthmus::collective
