// Calls of a device that may never come back, because the device hangs. Such a call runs on a thread of its own, which is left behind at
// the deadline. From then on the device counts as stuck, for the whole process.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "device/runtime.hpp"

namespace isthmus::process {

// Makes `calls` of a device's runtime or library on a thread of their own, until the deadline. `calls` may run on after that, so `calls`
// must hold all that it uses. Throws what `calls` throws. Throws Error(System) where `calls` or an earlier call has not come back.
void ask(device::Runtime &runtime, int device, Deadline deadline, std::function<void()> calls);
template <class T>
T asked(device::Runtime &runtime, int device, Deadline deadline, std::function<T()> calls) {
  const auto answer = std::make_shared<std::optional<T>>();
  ask(runtime, device, deadline, [answer, calls = std::move(calls)] { answer->emplace(calls()); });
  return std::move(**answer);
}
// Throws Error(System) where a call of an earlier communicator has not come back from the device.
void refuse_stuck(const device::Runtime &runtime, int device);

}  // namespace isthmus::process
