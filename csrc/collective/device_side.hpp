// DeviceSide is the device's part in the collectives of one rank: the executor, the ranks that a library serves with this one, and plain host
// memory on which the device works through pinned memory. A rank of the host without a library has none of these, and executor() is null.
//
// Thread rules: submit() and bounce_input() with the collective lock. abort() any thread. The rest with the right to execute.
#pragma once

#include <memory>
#include <vector>

#include "collective/bounces.hpp"
#include "collective/device_executor.hpp"
#include "collective/library_lane.hpp"
#include "engine/device_health.hpp"
#include "collective/engine_names.hpp"
#include "collective/stream_stop.hpp"

namespace isthmus::collective {

class DeviceSide {
 public:
  DeviceSide(RankCore &core, std::unique_ptr<DeviceExecutor> executor, std::vector<int> ranks, DeviceHealth &health) noexcept
      : core_(core), executor_(std::move(executor)), ranks_(std::move(ranks)), health_(health), stop_(core) {}
  ~DeviceSide();

  DeviceExecutor *executor() noexcept { return executor_.get(); }
  const DeviceExecutor *executor() const noexcept { return executor_.get(); }
  const std::vector<int> &ranks() const noexcept { return ranks_; }  // in the order of the library; empty: no library
  bool polls() const noexcept { return core_.uses_device.load(std::memory_order_relaxed) && core_.has_work(); }

  void submit(Operation &op);  // submits the device list; throws what DeviceExecutor::submit() throws
  void nothing_for_device() noexcept { behind_host_ = true; }  // an operation without device work was submitted
  bool sound(const Operation &op) noexcept;                    // false: the library has failed, and so has the communicator
  bool capturing(void *stream);                                // the user's stream. Any thread

  LibraryLane &lane() noexcept { return lane_; }  // messages by the library

  // Plain host memory of the user's is copied before the device is given anything, as the device goes on (true: something was copied), and at
  // the end.
  void bounce_input(Operation &op);
  bool bounce_on(Operation &op) noexcept;
  void bounce_output(Operation &op, bool well) noexcept;

  // After a failure.
  void abort() noexcept;
  bool settled(
      uint64_t
          entered) noexcept;  // nothing of ours runs on the device any more. `entered`: the collective in which this rank is
  void stop_stream() noexcept { stop_.stop(health_.first_stream()); }
  void died() noexcept;  // the device has failed

  // The next epoch. `quiet`: nothing of ours runs on the device. Any thread; after a failure, or where the program submits nothing.
  struct DeviceEstate {
    bool quiet = false;
    LibraryEstate library;
  };
  DeviceEstate estate() noexcept;
  void let_go_library() noexcept;  // with the right to execute

  // The end of the communicator. Returns the executor. Null: a thread that is stuck works with the executor, and keeps it.
  std::unique_ptr<DeviceExecutor> take_executor() noexcept;
  void leave_executor() noexcept;         // to that thread
  void drop_bounces(bool lost) noexcept;  // lost: the device may still come to the bounces
  void forget() noexcept;                 // in a forked child: the parent's memory, and its threads

 private:
  bool somebody_will_not_come(uint64_t entered) const noexcept;
  RankCore &core_;
  std::unique_ptr<DeviceExecutor> executor_;
  const std::vector<int> ranks_;
  DeviceHealth &health_;
  StreamStop stop_;
  LibraryLane lane_{*this};
  std::unique_ptr<Bounces> bounces_;  // made when first needed
  bool behind_host_ = true;           // the last operation submitted had no device work
};

}  // namespace isthmus::collective
