// The counters that a device's stream writes and the host list reads: how far the device has come. Values rise, from one operation to the next
// and within an operation.
#pragma once

#include <cstdint>
#include <memory>

#include "device/runtime.hpp"
#include "plan/plan.hpp"

namespace isthmus::collective {

// The number of a step of an operation, as gates and signals have it.
constexpr uint64_t value_within(uint64_t sequence, uint64_t value) noexcept {
  return (sequence << plan::kValueBits) + value;
}

class DeviceSignals {
 public:
  void make(device::Runtime &runtime, int device, device::Wake wake, void *context) {
    staged_ = runtime.make_signal(device, wake, context);
    taken_ = runtime.make_signal(device, wake, context);
    copied_ = runtime.make_signal(device, wake, context);
    ended_ = runtime.make_signal(device, wake, context);
    exchanged_ = runtime.make_signal(device, wake, context);
  }

  // By the thread that submits.
  void post(uint8_t counter, device::Stream &stream, uint64_t value) { of(counter).arm(stream, value); }
  void copy(uint64_t sequence, uint32_t below, device::Stream &stream) {
    copied_->arm(stream, value_within(sequence, below));
  }
  void end(uint64_t sequence, device::Stream &stream) { ended_->arm(stream, sequence); }
  void exchange(uint64_t ticket, device::Stream &stream) { exchanged_->arm(stream, ticket); }  // messages by the library

  // By any thread. `counter`: plan::kStaged or plan::kTaken.
  uint64_t posted(uint8_t counter) const noexcept { return of(counter).value(); }
  // The device has copied the pieces of a Bounce below this number.
  bool has_copied(uint64_t sequence, uint32_t below) const noexcept {
    return copied_->value() >= value_within(sequence, below);
  }
  bool ended(uint64_t sequence) const noexcept { return ended_->value() >= sequence; }
  uint64_t exchanged() const noexcept { return exchanged_->value(); }
  // The sum rises whenever the device has come to a signal.
  uint64_t sum() const noexcept {
    return staged_->value() + taken_->value() + copied_->value() + ended_->value() + exchanged();
  }

 private:
  device::Signal &of(uint8_t counter) const noexcept { return counter == plan::kStaged ? *staged_ : *taken_; }
  std::unique_ptr<device::Signal> staged_, taken_, copied_, ended_, exchanged_;
};

}  // namespace isthmus::collective
