#include "process/device_workers.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/error.hpp"
#include "base/own_thread.hpp"
#include "process/context_threads.hpp"

namespace isthmus::process {

DeviceWorkers::DeviceWorker &DeviceWorkers::worker_of(const LocalRank &rank, WorkerTask task) {
  for (const auto &w : workers_)
    if (w->runtime == rank.runtime() && w->device == rank.device() && w->task == task) return *w;
  DeviceWorker &made = *workers_.emplace_back(std::make_unique<DeviceWorker>());
  made.runtime = rank.runtime();
  made.device = rank.device();
  made.task = task;
  return made;
}

void DeviceWorkers::call(LocalRank &rank, WorkerTask task) {
  auto shared = rank.itself();
  const Lock lock(mutex_);
  try {
    DeviceWorker &worker = worker_of(rank, task);
    worker.jobs.push_back(std::move(shared));
    if (!worker.thread.joinable()) worker.thread = begin_own_thread([this, &worker] { loop(worker); });
    worker.called.notify_one();
  } catch (const std::exception &e) {
    rank.fail({{Code::Resource, formatted("cannot start the thread that carries messages to devices: {}", e.what())}},
              Tell::Peers);
  }
}

void DeviceWorkers::end() noexcept {
  std::vector<std::unique_ptr<DeviceWorker>> all;
  {
    const Lock lock(mutex_);
    end_ = true;
    all.swap(workers_);
  }
  for (const auto &worker : all) {
    worker->called.notify_all();
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void DeviceWorkers::loop(DeviceWorker &worker) {
  enter_context_thread();
  ::pthread_setname_np(::pthread_self(), "isthmus-worker");
  std::vector<std::weak_ptr<LocalRank>> jobs, again;
  for (;;) {
    {
      Lock lock(mutex_);
      const auto called = [&]() ISTHMUS_REQUIRES(mutex_) { return end_ || !worker.jobs.empty(); };
      if (again.empty()) worker.called.wait(lock, called);
      else worker.called.wait_for(lock, std::chrono::milliseconds(1), called);
      if (end_) return;
      jobs.swap(worker.jobs);
    }
    for (auto &job : again) jobs.push_back(std::move(job));
    again.clear();
    for (const auto &job : jobs) {
      const auto rank = job.lock();
      const auto same = [&](const auto &other) { return !other.owner_before(rank) && !rank.owner_before(other); };
      if (!rank) continue;
      if (worker.task == WorkerTask::StopStream) {
        rank->stop_stream();
        continue;
      }
      rank->look_at_device();
      if (std::none_of(again.begin(), again.end(), same) && rank->carry_messages()) again.push_back(rank);
    }
    jobs.clear();
  }
}

}  // namespace isthmus::process
