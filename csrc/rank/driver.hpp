// Drives the operations of one rank, by whoever comes: a thread that waits, one that tests, the progress thread. Ends all operations after a
// failure, once nothing of this rank touches user memory any more.
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

  // One non-blocking try to move things, the links too. True: something moved. `watched`: not the links that sockets tell of.
  bool drive(bool watched = false) noexcept;
  bool drive_operations() noexcept;  // the same without the links
  // Until op is over, or `until_ns` has passed (false). Drives this rank and the links; calls the interrupt check.
  bool wait(Operation *op, int64_t until_ns) noexcept;
  int64_t check_deadlines(int64_t now) noexcept;  // ends what is late; for operations that nobody waits for
  void look_at_device() noexcept;                 // by the device worker, where check_deadlines() has asked for it
  bool polls_device() const noexcept { return collectives_.device().polls(); }
  // What has not ended are calls of threads that were left behind.
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
      nullptr};                // a thread waits for it and has found nothing to do; compared, never followed
  bool looked_again_ = false;  // exec: after a failure, for what can still end well
  bool forgotten_ = false;     // exec: after a failure, on the links
};

// A device signals without waking anybody. Whoever waits for it looks again after a sixteenth of what he has waited: late by little, and cheap
// where a wait is long.
constexpr int64_t device_nap(int64_t waited_ns) noexcept { return std::clamp<int64_t>(waited_ns / 16, 30'000, 200'000); }

}  // namespace isthmus::rank
