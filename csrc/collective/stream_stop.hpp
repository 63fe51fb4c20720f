// StreamStop stops the first stream of a rank's device after a failure, where only a stop ends the work that stands there
// (DeviceEnding::wants_stop).
//
//   who drives                              the device worker that stops streams
//   wanted(): asked      ----------->       stop(): again and again, until the stream has run empty
//   wanted(): done       <-----------
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "collective/device_executor.hpp"
#include "collective/engine_names.hpp"

namespace isthmus::collective {

class StreamStop {
 public:
  explicit StreamStop(RankCore &core) noexcept : core_(core) {}
  // With the right to execute. `alone`: no thread submits now. A thread that submits while the stream is stopped may give the stream more behind
  // the stop. Then the stream is stopped once again. True: the stream is to be stopped, and has not been stopped yet.
  bool wanted(DeviceExecutor &executor, int64_t now, bool alone) noexcept;
  bool refused() const noexcept { return state_.load(std::memory_order_acquire) == State::Refused; }
  void stop(std::shared_ptr<device::Stream> stream) noexcept;  // by the device worker that stops streams

 private:
  enum class State : uint8_t { None, Asked, Done, Refused };
  RankCore &core_;
  std::atomic<State> state_{State::None};
  bool alone_ = false;  // no thread submitted when the stop was asked for
};

}  // namespace isthmus::collective
