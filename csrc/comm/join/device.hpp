// The device that a joining rank works on, and how the rank calls the device's runtime.
#pragma once

#include <string>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "device/runtime.hpp"
#include "process/hung_device.hpp"

namespace isthmus::comm::join {

struct Device {
  device::Runtime *runtime = nullptr;  // null: the host
  int number = 0;
  bool host() const noexcept { return runtime == nullptr; }
  std::string text() const { return host() ? "host" : formatted("{}:{}", runtime->vendor(), number); }
};

// How long a call of a device may take, in seconds. The time ends before the vote's deadline, so all ranks hear how the call ended.
inline double early(Deadline deadline) { return 0.8 * static_cast<double>(deadline.left_ns()) * 1e-9; }

// The result of `calls`, which call the device's runtime. A device that hangs may hold up a call for ever: see process::asked().
template <class T, class F>
T asked(const Device &device, Deadline deadline, F calls) {
  if (device.host()) return calls();
  return process::asked<T>(*device.runtime, device.number, Deadline(early(deadline)), std::move(calls));
}

}  // namespace isthmus::comm::join
