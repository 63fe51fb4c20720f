#include "engine/device_waits.hpp"

namespace isthmus::engine {

// A quiet time lasts as long as a group waits, and no longer than its communicator's deadline.
void enter_waits(RankCore &core, const Operation &op) noexcept {
  const p2p::QuietTime *const quiet = core.device.quiet;
  if (!quiet || core.device.quiet->enter()) return;
  core.sleep_until([&] { return !quiet->is_open() || core.failed() || now_ns() >= op.time.deadline_ns; });
  if (quiet->is_open() && !core.failed())
    core.fail_at(
        op, Code::Timeout,
        formatted(" did not finish within {:g} s: another thread of {} gives messages to the library of this device",
                  op.call.timeout, core.id.text(core.id.rank)),
        Lateness::Late);
}

}  // namespace isthmus::engine
