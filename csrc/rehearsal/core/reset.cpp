// The reset of a device.
#include "core/machine.hpp"

namespace rehearsal {
namespace {

void let_go(Device &d) {
  for (const StreamPtr &s : Machine::get().streams.all([&](const Stream &one) { return &one.device == &d; })) s->cancel();
  for (const StreamPtr &s : d.own_streams()) s->cancel();
}

void end_captures(Device &d) {
  for (const StreamPtr &s : Machine::get().streams.all([&](const Stream &one) { return &one.device == &d; }))
    if (const auto capture = s->capture()) {
      capture->invalid.store(true);
      if (capture->origin == s.get() && capture->mode == 0) Machine::get().global_captures.fetch_sub(1);
      s->capture(nullptr);
    }
}

}  // namespace

void reset(Device &d, bool waits) {
  if (waits) d.wait_idle();
  else let_go(d);  // now, because a thread that holds the lock may wait for the device
  const auto lock = d.enter();
  let_go(d);
  d.wait_all_idle();
  end_captures(d);
  Machine &machine = Machine::get();
  for (size_t n = machine.streams.lose([&](const Stream &s) { return &s.device == &d; }); n > 0; --n) died(Live::Stream);
  for (size_t n = machine.events.lose([&](const Event &e) { return e.device == d.ordinal(); }); n > 0; --n)
    died(Live::Event);
  lose_memory(d.ordinal());
  d.resets.fetch_add(1, std::memory_order_release);
}

}  // namespace rehearsal
