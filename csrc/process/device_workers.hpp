// The device workers: threads that may call a device's runtime for ranks. A call of the runtime may wait for all work of the device, so
// each device has a worker of its own, begun at first use.
//
// A second worker of the device stops streams (LocalRank::stop_stream). So it ends what the first worker may be waiting for.
//
// Thread rules. Any thread may call. The lock is not held while a worker calls a rank.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "process/local_rank.hpp"

namespace isthmus::process {

class DeviceWorkers {
 public:
  // The worker of the rank's device looks at the device and carries the rank's messages (LocalRank::carry_messages). `stops`: the other
  // worker stops the rank's stream instead. Where the thread cannot be begun, the rank fails.
  void call(LocalRank &rank, bool stops = false);
  void end() noexcept;  // and waits for the threads. No thread calls any more

 private:
  struct DeviceWorker {
    device::Runtime *runtime;
    int device;
    bool stops;
    Condition called;
    std::vector<std::weak_ptr<LocalRank>> jobs;
    std::thread thread;
  };
  DeviceWorker &worker_of(const LocalRank &rank, bool stops) ISTHMUS_REQUIRES(mutex_);
  void loop(DeviceWorker &worker);

  Mutex mutex_;
  std::vector<std::unique_ptr<DeviceWorker>> workers_ ISTHMUS_GUARDED_BY(mutex_);
  bool end_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::process
