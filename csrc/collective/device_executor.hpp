// The device side of a member whose rank works on a device's memory or is served by a vendor's library: the stream, the library's
// communicator if there is one, and the counters in which the device list of a plan and its host list meet. Device work is submitted
// by the thread that submits the operation; the progress thread only opens gates and reads signals, which are stores and loads.
//
// Two streams. Stages that say `beside` stand on the second, each behind all that the first was given before it; the first takes the second
// up again at the end of the operation. The order of submission is the order of the plan, so both may be one queue of the device's.
//
// Order on the streams. An operation's device list begins behind the gate `go`, which its host list opens when everything before it has
// ended (the plan's entry rule); two operations without slots that follow each other need none. It ends with the signal `ended`.
//
// Where the device's streams cannot wait for the host, the thread that submits waits in a gate's place, before it submits what stands
// behind it: the call then returns when the last of its exchanges is over. Executed as one queue the device list of a plan completes,
// and that is what this is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collective/device_ending.hpp"
#include "collective/device_steps.hpp"
#include "collective/queued_work.hpp"
#include "collective/engine_names.hpp"
#include "device/runtime.hpp"

namespace isthmus::collective {

class DeviceExecutor {
 public:
  // `wake` is called when a signal has been given, on a thread of the runtime's, and when a thread that submits may go on.
  DeviceExecutor(DeviceExecutorSetup setup, device::Wake wake, void *context);
  // Ends the library's communicator, behind what was submitted. What cannot end is left behind, with all that it uses.
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor &) = delete;
  DeviceExecutor &operator=(const DeviceExecutor &) = delete;

  // Submits the device list of `op`, whose places in the arena are known. One thread at a time, in the order of the sequence numbers; may wait
  // where the runtime's queue is bounded. Throws what the runtime or the library throws; the operation is then to be failed.
  // `behind_host`: an operation without device work was submitted since the last that had some.
  // `wait` is only called where the submitting thread waits in a gate's place.
  using Wait = HostDoors::Wait;
  void submit(Operation &op, bool behind_host, Wait wait, void *wait_context);
  // Before that, and before other threads see an operation with pinned memory that the device works on: for which of it other memory stands.
  void lend_for_pinned(Operation &op) const noexcept;
  // Where the device finds the rings of the ranks of the communicator that its plans read (Memory::Ring); before the first submission.
  void reaches(std::vector<std::byte *> rings) { rings_ = std::move(rings); }
  std::byte *arena() const noexcept { return work_->arena; }  // where the device finds the beginning of this process's
  bool capturing(void *stream) {                              // the user's. By the thread that submits
    return work_->ties.user(*work_->runtime, device(), stream).capturing();
  }
  // `op`, which was submitted and has used memory of the device on its way, has come to its end there.
  void ended_well(Operation &op) noexcept { work_->loan.ended_well(op); }
  void finish(uint64_t sequence) noexcept;  // signals the end of what was submitted; submit() does so but where it throws

  // Where the host list and the device list meet. Any thread.
  HostDoors &doors() noexcept { return work_->doors; }
  const DeviceSignals &signals() const noexcept { return work_->signals; }
  // Whether the stream has come to its end, and how the stream ends after a failure. Any thread.
  DeviceEnding &ending() noexcept { return ending_; }

  // What of the device list of `op`, which was submitted, the device may not have come past, for people.
  std::string standing(const Operation &op) const { return standing_steps(op, work_->doors, work_->signals); }
  Status status() const;         // the first failure of the library or the stream
  bool failed() const noexcept;  // status() is not OK

  const char *family() const noexcept { return work_->family(); }
  const char *doing() const noexcept { return work_->doing(); }
  // The user's memory can only be reached by the device.
  bool private_memory() const noexcept { return private_; }
  int device() const noexcept { return work_->stream->device(); }
  // Where its work stands. The second may be null.
  std::pair<std::weak_ptr<device::Stream>, std::weak_ptr<device::Stream>> streams() const {
    return {work_->stream, work_->beside};
  }
  device::Runtime &runtime() const noexcept { return *work_->runtime; }

 private:
  void step(const Operation &op, const plan::Step &step, uint32_t c, device::Stream &stream);
  void piece(const Operation &op, uint32_t k, std::byte *there);  // of a bounce, to the device or from it
  void copy_blocks(device::Stream &stream, std::byte *to, const std::byte *from, std::span<const uint64_t> displ,
                   std::span<const uint64_t> bytes);

  std::unique_ptr<QueuedWork> work_;  // left behind with a stuck thread
  DeviceEnding ending_;
  std::vector<std::byte *> rings_;
  bool private_ = false;
};

}  // namespace isthmus::collective
