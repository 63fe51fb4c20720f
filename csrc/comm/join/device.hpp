// The device that a joining rank works on, and how it is asked.
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

// In seconds: short of the vote's deadline, so that all hear how it ended.
inline double early(Deadline deadline) { return 0.8 * static_cast<double>(deadline.left_ns()) * 1e-9; }

// A device that hangs may hold up a call for ever: see process::ask().
template <class T, class F>
T asked(const Device &device, Deadline deadline, F calls) {
  if (device.host()) return calls();
  return process::asked<T>(*device.runtime, device.number, Deadline(early(deadline)), std::move(calls));
}

}  // namespace isthmus::comm::join
