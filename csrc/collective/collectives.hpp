// Collectives runs the collectives of one rank, one after the other, in the order of their calls; the host list of one may begin while the device
// still works on the one before (plan.hpp, entry rule). On the host a collective runs in cells
// (OneHop) or by a plan's host list (HostExecutor). On the device a collective runs by the plan's device list (DeviceSide).
//
// Thread rules: submit() any thread. advance(), end_all() and end_what_memory_completes() with the right to execute. The rest any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/descriptions.hpp"
#include "collective/device_side.hpp"
#include "collective/host_executor.hpp"
#include "collective/one_hop.hpp"
#include "collective/operation_queue.hpp"
#include "collective/slot_memory.hpp"
#include "engine/device_waits.hpp"

namespace isthmus::collective {

struct CollectivesSetup {
  std::unique_ptr<DeviceExecutor> executor;  // or null
  std::vector<int> library_ranks;            // the ranks that the library serves, this one among them
  uint64_t fixed_ring = 0, fixed_ring_bytes = 0;
  uint64_t credit_window = 0;
};

class Collectives {
 public:
  Collectives(RankCore &core, CollectivesSetup setup, DeviceHealth &health);

  // `before_device` is called before device work is submitted, without a lock: sends that wait have to be on their way first.
  template <class Before>
  void submit(Operation *op, Before before_device) noexcept {
    if (!device_.executor()) return queue_.append(op);
    before_device();
    if (core_.device && op->plan && !op->plan->device.empty()) {
      op->run.waits_for_ranks = true;
      engine::enter_waits(core_, *op);
    }
    submit_to_device(op);
  }
  void submit_failed(Operation *op) noexcept;  // the communicator has failed
  const OperationQueue &queue() const noexcept { return queue_; }

  // Goes on with the first operation, and ends the operation where the operation is over. Moved: something was done. Ended: an operation has
  // ended.
  Outcome advance() noexcept;
  // Called once, after a failure. A rank that is gone, or that has aborted, may have ended an operation in which this rank still stands, for
  // instance a barrier before. All that the ranks had to say for that operation is in memory that is mapped here. So the operation ends well,
  // unless a device of this rank still works on the operation. Without this the end of an operation would depend on what a rank hears first, the
  // failure or the operation.
  bool end_what_memory_completes() noexcept;
  void end_all(Code code) noexcept;                   // after a failure, when nothing touches user memory any more
  void release(Operation &op, Code result) noexcept;  // see OperationSink

  // An operation whose deadline has passed. All wait for the first one, so that is where to look for the culprit. Compares the call of the peer that
  // blocks the first. With the right to execute. Null: none is late, or the communicator has failed.
  struct Late {
    const Operation *first = nullptr, *late = nullptr;
  };
  Late late(int64_t now) noexcept;
  uint64_t progress() const noexcept;  // another number whenever something has gone on, of the host or the device

  // For people, and for other processes that ask what this rank does.
  uint64_t entered() const noexcept { return entered_.load(std::memory_order_acquire); }
  uint64_t done() const noexcept { return done_.load(std::memory_order_acquire); }
  int waiting_on() const noexcept { return waiting_on_.load(std::memory_order_relaxed); }
  std::string waiting_text() const;  // "#3 all_reduce (...) of 'world', waiting for rank 2", or empty
  void answer(Answer &a, uint64_t sequence) const noexcept;

  DeviceSide &device() noexcept { return device_; }
  const DeviceSide &device() const noexcept { return device_; }
  SlotMemory &memory() noexcept { return memory_; }
  const SlotMemory &memory() const noexcept { return memory_; }
  HostExecutor &host() noexcept { return host_; }

 private:
  void submit_to_device(Operation *op) noexcept;
  void take_room(Operation &op);
  void begin_if_first(Operation *op) noexcept;
  Outcome run(Operation &op) noexcept;
  void end_first(Operation *op) noexcept;

  RankCore &core_;
  OperationQueue queue_;
  StreamingCopy streaming_;
  Descriptions descriptions_;
  SlotMemory memory_;
  DeviceSide device_;
  OneHop one_hop_;
  HostExecutor host_;
  // Published for diagnosis.
  std::atomic<uint64_t> entered_{0}, done_{0};
  std::atomic<int32_t> waiting_on_{-1};
  std::atomic<uint32_t> turn_{0};  // of the operation that waits
};

}  // namespace isthmus::collective
