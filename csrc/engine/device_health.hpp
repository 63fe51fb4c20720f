// DeviceHealth tells whether the device of a rank still works. A device that has failed, or that the program has reset, signals nothing more.
//
// A thread that waits does not ask the driver. The driver's call could wait for the very work that goes on when that thread has opened a gate. So
// the device worker asks. (Where a library has said that the device has failed, its communicator asks, once: ccl/stream_word.hpp.)
//
//   who waits                                 the device worker
//   nothing of the device has gone on
//   for 100 ms: doubt()          -------->    look(): asks the driver for the streams' status, for at most 2 s
//                                             failed: the communicator fails
//                                             no answer: nobody asks again before it comes
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/rank_core.hpp"

namespace isthmus::engine {

using DeviceStreams = std::pair<std::weak_ptr<device::Stream>, std::weak_ptr<device::Stream>>;  // the second may be none

class DeviceHealth {
 public:
  // `streams`: where the device's work stands. For a rank without a device every function does nothing.
  DeviceHealth(RankCore &core, DeviceStreams streams) : core_(core), streams_(std::move(streams)) {}

  // Called by a thread that waits for the device, with the right to execute. `moved` is another number whenever something of the device has gone on.
  void note(uint64_t moved, bool waits_for_device, int64_t now) noexcept;
  void doubt(int64_t now) noexcept;
  // Called by the device worker, where doubt() has asked for a look. Not ok: the device has failed.
  Status look() noexcept;
  void failed(const Status &s) noexcept;  // the device has failed, so the communicator fails

  // Tells whose memory `memory` is. Memory that the runtime does not know may have been the device's until the program reset the device. In that
  // case the communicator fails, and find() throws. Any thread.
  device::PointerInfo find(const void *memory);
  void refuse_stuck() const;  // throws why the communicator has failed, where the driver is known to hang
  std::shared_ptr<device::Stream> first_stream() const noexcept { return streams_.first.lock(); }

 private:
  [[noreturn]] void throw_why() const;
  RankCore &core_;
  const DeviceStreams streams_;
  std::atomic<int64_t> asked_ns_{0};  // when the last doubt came, or when something of the device last went on
  uint64_t moved_ = 0;                // what had gone on then
  std::atomic<bool> doubted_{false};
  // How often the driver has not answered in time. Each time makes the pause between two questions twice as long.
  std::atomic<int> late_{0};
  // How often the driver has not answered yet. Meanwhile no thread asks again.
  const std::shared_ptr<std::atomic<int>> unanswered_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace isthmus::engine
