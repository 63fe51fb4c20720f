// DeviceExecutor gives a device the device list of a plan, for a rank that works on a device's memory or that a vendor's library serves. The
// executor has the stream, the library's communicator if there is one, and the counters in which device list and host list meet.
//
// The thread that submits the operation submits the device work. The progress thread only opens gates and reads signals, which are stores and
// loads.
//
//   who submits                stream (device list)             who executes (host list)
//   submit(): arms gates,
//   submits copies, signals
//   returns                    holds at gate `go`
//                                                               all before the operation has ended
//                                                   <-------    doors().go()
//                              copies chunk 0 to a slot
//                              signal `staged`      ------->    posted(): moves chunk 0 on
//                                                   <-------    doors().ready()
//                              copies chunk 0 from a slot
//                              signal `ended`       ------->    ended(): ends the operation
//
// Two streams. Stages that say `beside` stand on the second stream. Each such stage comes behind all that the first stream was given before the
// stage. The first stream goes on behind the second at the end of the operation (StreamTies). The order of submission is the order of the plan,
// so both streams may be one queue of the device's.
//
// Order on the streams. An operation's device list begins behind the gate `go`. The host list opens the gate when everything before the
// operation has ended (the plan's entry rule). Two operations without slots that follow each other need no such gate. A device list ends with
// the signal `ended`. What comes early stands on the second stream behind the gate of the operation before (EarlyCopies).
//
// Some devices' streams cannot wait for the host. There the thread that submits waits in a gate's place, before that thread submits the work
// behind the gate. The call then returns when the last of its exchanges is over. No deadlock follows: the device list of a plan completes when
// executed as one queue, and a thread that waits in place makes one queue of the list.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collective/device_ending.hpp"
#include "collective/device_steps.hpp"
#include "collective/early_copies.hpp"
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

  // Submits the device list of `op`, whose places in the arena are known. One thread at a time submits, in the order of the sequence numbers.
  // submit() may wait where the runtime's queue is bounded. submit() throws what the runtime or the library throws; then the caller fails the
  // operation.
  // `behind_host`: an operation without device work was submitted since the last that had some.
  // `wait` is only called where the submitting thread waits in a gate's place.
  using Wait = HostDoors::Wait;
  void submit(Operation &op, bool behind_host, Wait wait, void *wait_context);
  // Decides for which pinned memory of the user's other memory stands, in an operation with pinned memory on which the device works. Called
  // before submit(), and before other threads see the operation.
  void lend_for_pinned(Operation &op) const noexcept;
  // Where the device finds the rings that plans read (Memory::Ring), by rank of the communicator. Called before the first submission.
  void reaches(std::vector<std::byte *> rings) { rings_ = std::move(rings); }
  ArenaThere &arena() noexcept { return work_->arena; }
  device::Stream &user(void *stream) {  // the user's. By the thread that submits
    return work_->ties.user(*work_->runtime, device(), stream);
  }
  // `op`, which was submitted, is over: memory of the device that it has used on its way, and the mark of its end, go back. Any thread.
  void is_over(Operation &op, bool well) noexcept;
  void finish(uint64_t sequence) noexcept;  // signals the end of what was submitted, where submit() has thrown

  // Where the host list and the device list meet. Any thread.
  HostDoors &doors() noexcept { return work_->doors; }
  const DeviceSignals &signals() const noexcept { return work_->signals; }
  // Whether the stream has come to its end, and how the stream ends after a failure. Any thread.
  DeviceEnding &ending() noexcept { return ending_; }

  // The part of the device list of `op` past which the device may not have come, for people. `op` was submitted.
  std::string standing(const Operation &op) const { return standing_steps(op, work_->doors, work_->signals); }
  Status status() const;         // the first failure of the library or the stream
  bool failed() const noexcept;  // status() is not OK

  const char *family() const noexcept { return work_->family(); }
  const char *doing() const noexcept { return work_->doing(); }
  // The user's memory can only be reached by the device.
  bool private_memory() const noexcept { return private_; }
  int device() const noexcept { return work_->stream->device(); }
  // The streams on which the work stands. The second may be null.
  std::pair<std::weak_ptr<device::Stream>, std::weak_ptr<device::Stream>> streams() const {
    return {work_->stream, work_->beside};
  }
  device::Runtime &runtime() const noexcept { return *work_->runtime; }

 private:
  friend class LibraryLane;  // has the stream and the library for messages
  void step(const Operation &op, const plan::Step &step, uint32_t c, device::Stream &stream);
  // The calls of the library from here on, up to another step or the end of the stage, as one group. Moves `at` behind them.
  void group(const Operation &op, plan::Cursor &at, device::Stream &stream);
  void piece(const Operation &op, uint32_t k, std::byte *there);  // of a bounce, to the device or from it
  void copy_blocks(device::Stream &stream, std::byte *to, const std::byte *from, std::span<const uint64_t> displ,
                   std::span<const uint64_t> bytes);

  std::unique_ptr<QueuedWork> work_;  // left behind with a stuck thread
  DeviceEnding ending_;
  EarlyCopies early_;
  std::vector<std::byte *> rings_;
  bool private_ = false;
};

}  // namespace isthmus::collective
