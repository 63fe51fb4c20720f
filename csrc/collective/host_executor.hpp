// HostExecutor runs the host list of one rank's plans, step by step. HostExecutor knows nothing of collectives. A step that cannot go on returns
// Blocked, and the next try begins at the same step.
//
// Thread rules: the thread with the right to execute. accept() and received() are called by a thread that holds a link's turn.
#pragma once

#include <vector>

#include "collective/descriptions.hpp"
#include "collective/device_side.hpp"
#include "collective/one_hop.hpp"
#include "collective/plan_inbox.hpp"
#include "collective/slot_memory.hpp"
#include "collective/step_tracer.hpp"
#include "engine/rank_core.hpp"

namespace isthmus::collective {

class HostExecutor {
 public:
  HostExecutor(RankCore &core, Descriptions &descriptions, SlotMemory &memory, DeviceSide &device, StreamingCopy &streaming,
               uint64_t credit_window);

  // The turn of `op` has come, whose host list may have begun before. Ranks in the same memory must have ended the last operation before the
  // operation's ring may be written again (plan.hpp, entry rule). False: a rank has not, or there is no room for the slots, or the communicator has
  // failed.
  bool begin(Operation &op) noexcept;
  Outcome run(Operation &op) noexcept;
  // Of the first operation of `queue`, whose try to go on was Blocked. While only its device still works on it, the host list of the next one runs as
  // far as it goes, where that one comes early (plan.hpp, entry rule).
  void go_ahead(const Operation &op, const OperationQueue &queue) noexcept;
  // Since the last look: pieces of host memory were copied, or a link was given a frame, which it has to send before its thread sleeps.
  bool has_moved() noexcept { return std::exchange(moved_, false); }

  // As in link::FrameSink, for plan data from a rank of the communicator.
  link::Accept accept(const link::FrameHeader &h, int64_t since_ns, std::byte *&to);
  PlanInbox &inbox() noexcept { return inbox_; }

 private:
  struct PeerPlan {              // of one rank
    uint64_t frames_out = 0;     // of plan data
    uint64_t ring_sequence = 0;  // `ring` is the rank's ring in this operation
    std::byte *ring = nullptr;
    std::atomic<uint32_t> in_link{0};  // frames of the plan that ran last whose data the link may still read
  };
  bool start(Operation &op) noexcept;
  // The steps, to the end of the list: true. `while_not_ended`: false once the device has ended that operation.
  bool walk(Operation &op, uint64_t while_not_ended = 0) noexcept;
  Outcome drain(Operation &op) noexcept;  // behind the last step
  Outcome step(Operation &op, const plan::Step &step, uint32_t c) noexcept;
  Outcome wait(Operation &op, const plan::Step &step, int64_t value) noexcept;
  void post(Operation &op, const plan::Step &step, int64_t value) noexcept;
  Outcome move(Operation &op, const plan::Step &step, uint32_t c, uint64_t bytes, uint64_t wide) noexcept;
  Outcome reduce(Operation &op, const plan::Step &step, uint32_t c, uint64_t bytes, uint64_t wide) noexcept;
  Outcome send(Operation &op, const plan::Step &step, uint32_t c, uint64_t bytes, const std::byte *data) noexcept;
  Outcome receive(Operation &op, const plan::Step &step, uint64_t bytes, std::byte *to) noexcept;
  Outcome wait_until_sent(Operation &op, uint32_t c) noexcept;  // the chunk that the slot had before is out
  Outcome wait_for_device(Operation &op) noexcept;              // Blocked, after a look whether the device goes on at all
  bool compare_sizes(
      Operation &op) noexcept;  // false: not all ranks have published or sent their sizes, or the communicator has failed
  bool tells_sizes(const plan::Plan &p, int q) const noexcept;  // sizes go to that rank and come from that rank by a link
  bool size_of(Operation &op, int q,
               uint64_t &sent) noexcept;  // of the block that rank `q` has for this rank; false: not known yet
  std::byte *address(Operation &op, const plan::Span &span, uint32_t c) noexcept;
  std::byte *ring_of(Operation &op, int rank) noexcept;
  bool slots_held(Operation &op) noexcept;  // this rank read in slots of other ranks what they wrote for this rank

  RankCore &core_;
  Descriptions &descriptions_;
  SlotMemory &memory_;
  DeviceSide &device_;
  StreamingCopy &streaming_;
  PlanInbox inbox_;
  const uint64_t credit_window_;
  const StepTracer tracer_;
  std::vector<PeerPlan> peers_;
  std::vector<reduce::Source> sources_;
  std::vector<std::byte> scratch_;
  uint64_t last_ring_ = 0;    // sequence of the last operation that wrote a ring anywhere in the communicator
  uint64_t their_size_ = 0;   // the size that came last by a link
  const bool watches_slots_;  // some rank's device fills that rank's slots
  const bool shares_memory_;  // some rank with another one
  bool moved_ = false;
};

}  // namespace isthmus::collective
