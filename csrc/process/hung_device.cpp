#include "process/hung_device.hpp"

#include <atomic>
#include <cstdint>

#include "base/error.hpp"
#include "device/abandoned.hpp"
#include "device/calling.hpp"

namespace isthmus::process {

void refuse_stuck(const device::Runtime &runtime, int device) {
  if (const char *call = runtime.stuck(device))
    fail(Code::Device,
         "{}:{} hangs: {}, of a communicator that this process had before, has not come back from it; start a new process",
         runtime.vendor(), device, call);
}

void ask(device::Runtime &runtime, int device, Deadline deadline, std::function<void()> calls) {
  refuse_stuck(runtime, device);
  const int64_t begun = now_ns();
  const auto vendor_call = std::make_shared<device::VendorCall>();
  const auto ended = device::call_within(
      static_cast<double>(deadline.left_ns()) * 1e-9,
      [vendor_call, calls = std::move(calls)] {
        struct Here {
          device::VendorCall *const outer;
          explicit Here(device::VendorCall *mine) : outer(std::exchange(device::vendor_call_here, mine)) {}
          ~Here() { device::vendor_call_here = outer; }
        } const here(vendor_call.get());
        calls();
        return Status{};
      },
      [&runtime, device] { runtime.came_back(device); }, [&] { return runtime.stuck(device) != nullptr; });
  if (ended) {
    if (!ended->ok()) throw Error(ended->code, ended->text);
    return;
  }
  const char *const before = runtime.stuck(device);
  const char *const call = vendor_call->inside() ? vendor_call->call.load(std::memory_order_relaxed) : nullptr;
  const char *const library = vendor_call->library.load(std::memory_order_relaxed);
  runtime.does_not_come_back(device, before ? before : call ? call : "a call of the last init");
  if (before) refuse_stuck(runtime, device);
  fail(Code::Device, "{}:{} hangs: {}{}{}{} has not come back from it in {:.1f} s; start a new process", runtime.vendor(),
       device, call ? call : "what init asked of it", call ? " (" : "", call ? library : "", call ? ")" : "",
       static_cast<double>(now_ns() - begun) * 1e-9);
}

}  // namespace isthmus::process
