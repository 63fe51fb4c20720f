// The doors of a device list: where the device's stream waits for the host list. There are three doors.
//
//   go      an operation may begin: everything before the operation has ended (the plan's entry rule)
//   ready   a slot is full, or free
//   pieces  a piece of plain host memory is copied, or its place is free (Bounces)
//
// A door opens at rising values. Where the device has gates, the stream holds at the door, and the thread that submits goes on:
//
//   who submits                stream                         who executes the host list
//   pass(7): arms the gate
//   submits a copy
//                              holds at the gate
//                                                             go(7): stores 7, opens the gate
//                              passes; copies      <------
//
// Where the device has no gates, the thread that submits waits in the stream's place:
//
//   who submits                                               who executes the host list
//   pass(7): sleeps
//                                                  <------    go(7): stores 7, wakes
//   submits a copy
//
// let_go() opens all gates for good, after a failure.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "collective/device_signals.hpp"
#include "device/runtime.hpp"

namespace isthmus::collective {

class HostDoors {
 public:
  // Sleeps until `holds` of `what` is true.
  using Wait = void (*)(void *context, bool (*holds)(const void *), const void *what);
  // `cancelled` is set after a failure. `wake` is called when a thread that submits may go on.
  HostDoors(const std::atomic<bool> &cancelled, device::Wake wake, void *context) noexcept
      : cancelled_(cancelled), wake_(wake), wake_context_(context) {}
  void make_gates(device::Runtime &runtime, int device);
  bool gated() const noexcept { return go_.gate != nullptr; }

  // The host list's side. Any thread.
  void go(uint64_t sequence) noexcept { open(go_, sequence); }
  void ready(uint64_t value) noexcept { open(ready_, value); }
  bool is_ready(uint64_t value) const noexcept { return ready_.value.load(std::memory_order_acquire) >= value; }
  // Of the pieces of an operation whose plain host memory is copied (Bounce), the device may take those below.
  void give_pieces(uint64_t sequence, uint32_t below) noexcept { open(pieces_, value_within(sequence, below)); }
  void let_go() noexcept;  // more than once

  // The device list's side, by the thread that submits. `wait` serves the submission that begins, where there are no gates. A door throws
  // Error(Aborted) where its thread waited and the communicator failed.
  void begin(Wait wait, void *context) noexcept {
    wait_ = wait;
    wait_context_ = context;
  }
  void pass_go(uint64_t sequence, device::Stream &stream) { pass(go_, sequence, stream); }
  void pass_ready(uint64_t value, device::Stream &stream) { pass(ready_, value, stream); }
  void pass_pieces(uint64_t sequence, uint32_t below, device::Stream &stream) {
    pass(pieces_, value_within(sequence, below), stream);
  }

 private:
  struct Door {
    std::unique_ptr<device::StreamGate> gate;  // or null: the submitting thread looks at `value`
    std::atomic<uint64_t> value{0};            // the door has been opened so far
  };
  void open(Door &door, uint64_t value) noexcept;
  void pass(Door &door, uint64_t value, device::Stream &stream);

  Door go_, ready_, pieces_;
  const std::atomic<bool> &cancelled_;
  const device::Wake wake_;
  void *const wake_context_;
  Wait wait_ = nullptr;
  void *wait_context_ = nullptr;
  std::atomic<bool> let_go_{false};
};

}  // namespace isthmus::collective
