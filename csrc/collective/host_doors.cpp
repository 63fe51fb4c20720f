#include "collective/host_doors.hpp"

#include "base/error.hpp"

namespace isthmus::collective {

void HostDoors::make_gates(device::Runtime &runtime, int device) {
  go_.gate = runtime.make_gate(device);
  ready_.gate = runtime.make_gate(device);
  pieces_.gate = runtime.make_gate(device);
}

void HostDoors::open(Door &door, uint64_t value) noexcept {
  uint64_t seen = door.value.load(std::memory_order_relaxed);
  while (seen < value && !door.value.compare_exchange_weak(seen, value, std::memory_order_release)) {}
  if (door.gate) door.gate->open(value);
  else wake_(wake_context_);
}

void HostDoors::pass(Door &door, uint64_t value, device::Stream &stream) {
  if (door.value.load(std::memory_order_acquire) >= value) return;  // what is submitted now need not wait for the door
  if (door.gate) return door.gate->arm(stream, value);
  struct What {
    const Door *door;
    uint64_t value;
    const std::atomic<bool> *cancelled;
  } const what{&door, value, &cancelled_};
  const auto holds = [](const void *p) {
    const auto &w = *static_cast<const What *>(p);
    return w.door->value.load(std::memory_order_acquire) >= w.value || w.cancelled->load(std::memory_order_acquire);
  };
  if (!holds(&what)) wait_(wait_context_, holds, &what);
  if (cancelled_.load(std::memory_order_acquire)) fail(Code::Aborted, "the communicator has failed");
}

void HostDoors::let_go() noexcept {
  if (let_go_.exchange(true)) return;
  for (Door *door : {&go_, &ready_, &pieces_})
    if (door->gate) door->gate->poison();
  wake_(wake_context_);
}

}  // namespace isthmus::collective
