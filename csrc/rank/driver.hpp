// RankDriver drives the operations of one rank. Any thread that comes drives: a thread that waits, a thread that tests, the progress thread. After
// a failure RankDriver ends all operations, once nothing of this rank touches user memory any more.
//
// A thread that waits drives, spins, and then sleeps on the doorbell of its process. A rank of another process rings that doorbell when its mailbox
// has news (RankCore::ring_peers):
//
//   rank 0, wait(op)                       rank 1
//   drive(): blocked on rank 1's counter
//   spins, yields
//   Links::sleep(): notes the bell's count
//   drive() once more: still blocked
//   sleeps                                 executes its part
//                                          stores its counter (release)
//                          <-------------  rings rank 0's doorbell
//   wakes, drive(): reads the counter (acquire), goes on
//   op is over: wait() returns
//
// No news is lost: the driver looks once more between the note of the count and the sleep, and a ring after the note ends the sleep at once.
//
// Thread rules: any thread.
#pragma once

#include "rank/blame.hpp"
#include "engine/device_health.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

class RankDriver {
 public:
  RankDriver(RankCore &core, Collectives &collectives, Messages &messages, DeviceHealth &health, Blame &blame) noexcept
      : core_(core), collectives_(collectives), messages_(messages), health_(health), blame_(blame) {}

  // One non-blocking try to move things, the links too. True: something moved.
  bool drive(LookAt links = LookAt::AllLinks) noexcept;
  bool drive_operations() noexcept;  // the same without the links
  // Waits until `op` is over (true), or `until_ns` has passed (false). Drives this rank and the links meanwhile, and calls the interrupt check.
  bool wait(Operation *op, int64_t until_ns) noexcept;
  int64_t check_deadlines(int64_t now) noexcept;  // ends what is late; for operations for which no thread waits
  void look_at_device() noexcept;                 // by the device worker, where check_deadlines() has asked for it
  bool polls_device() const noexcept { return collectives_.device().polls(); }
  // All that has not ended are calls of threads that were left behind.
  bool only_stuck() noexcept;
  const Operation *awaited_message() const noexcept { return awaited_message_.load(std::memory_order_acquire); }

 private:
  struct Waiting;
  bool drive_held() noexcept;  // with the right to execute
  bool end_after_failure() noexcept;
  void forget_on_links() noexcept;
  void look_at_clock(Waiting &w, int64_t now) noexcept;
  bool pause(Waiting &w, int64_t now, int64_t until_ns) noexcept;

  RankCore &core_;
  Collectives &collectives_;
  Messages &messages_;
  DeviceHealth &health_;
  Blame &blame_;
  std::atomic<const Operation *> awaited_message_{
      nullptr};  // a thread waits for this message or group and has found nothing to do; compared, never followed
  bool looked_again_ = false;  // exec: after a failure, for what can still end well
  bool forgotten_ = false;     // exec: after a failure, on the links
};

}  // namespace isthmus::rank
