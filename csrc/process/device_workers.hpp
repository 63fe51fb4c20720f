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

// What a device's two workers are there for.
enum class WorkerTask : uint8_t {
  LookAndCarry,  // looks at the device, and carries the rank's messages (LocalRank::carry_messages)
  StopStream     // stops the rank's stream (LocalRank::stop_stream)
};

class DeviceWorkers {
 public:
  // Calls the worker of the rank's device that has this task. Where the thread cannot be begun, the rank fails.
  void call(LocalRank &rank, WorkerTask task);
  void end() noexcept;  // and waits for the threads. No thread calls any more

 private:
  struct DeviceWorker {
    device::Runtime *runtime;
    int device;
    WorkerTask task;
    Condition called;
    std::vector<std::weak_ptr<LocalRank>> jobs;
    std::thread thread;
  };
  DeviceWorker &worker_of(const LocalRank &rank, WorkerTask task) ISTHMUS_REQUIRES(mutex_);
  void loop(DeviceWorker &worker);

  Mutex mutex_;
  std::vector<std::unique_ptr<DeviceWorker>> workers_ ISTHMUS_GUARDED_BY(mutex_);
  bool end_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::process
