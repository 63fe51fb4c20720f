// The simulated libascendcl.so: callbacks, which are the older way to run host functions in the order of a stream. The program subscribes
// one of its threads to a stream. The thread runs the stream's callbacks.
//
//   program's thread A                  queue's thread                  program's thread B
//     aclrtSubscribeReport(B, s)
//     aclrtLaunchCallback(f, s)  ---->    comes to the callback
//                                         puts f into B's queue  ---->    aclrtProcessReport(): runs f
//                                         blocking: waits        <----    f has returned
//                                         goes on
#include <pthread.h>

#include <deque>

#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {

// One callback.
struct Report {
  void (*function)(void *) = nullptr;
  void *argument = nullptr;
  std::atomic<bool> done{false};
};

struct Reports {
  Mutex mutex;
  Condition came;
  std::deque<std::shared_ptr<Report>> queue ISTHMUS_GUARDED_BY(mutex);
  size_t streams ISTHMUS_GUARDED_BY(mutex) = 0;  // to which the thread is subscribed
  std::atomic<size_t> pending{0};                // callbacks that have come and have not returned
};

namespace {

using Threads = Guarded<std::map<uint64_t, std::shared_ptr<Reports>>>;
Threads &threads() {
  static Threads *const the_threads = new Threads;
  return *the_threads;
}

// `make`: makes the thread's reports if there are none; else null.
std::shared_ptr<Reports> reports_of(uint64_t thread, bool make) {
  const auto all = threads().lock();
  const auto it = all->find(thread);
  if (it != all->end()) return it->second;
  return make ? all->emplace(thread, std::make_shared<Reports>()).first->second : nullptr;
}

void launch(const std::shared_ptr<Reports> &reports, const std::shared_ptr<Report> &report) {
  {
    const Lock lock(reports->mutex);
    reports->pending.fetch_add(1);
    reports->queue.push_back(report);
  }
  reports->came.notify_all();
}

// Runs the thread's next callback. Waits for one, at most `ms`; -1: for ever.
Result run_one(Reports &reports, int32_t ms) {
  std::shared_ptr<Report> report;
  {
    Lock lock(reports.mutex);
    const auto there = [&]() ISTHMUS_REQUIRES(reports.mutex) { return !reports.queue.empty(); };
    if (ms < 0) reports.came.wait(lock, there);
    else if (!reports.came.wait_for(lock, std::chrono::milliseconds(ms), there)) return kReportTimeout;
    report = reports.queue.front();
    reports.queue.pop_front();
  }
  in_host_function() = true;
  report->function(report->argument);
  in_host_function() = false;
  report->done.store(true, std::memory_order_release);
  reports.pending.fetch_sub(1);
  return kSuccess;
}

}  // namespace
}  // namespace rehearsal::acl

using namespace rehearsal;
using namespace rehearsal::acl;

EXPORT Result aclrtSubscribeReport(uint64_t thread, StreamHandle stream) {
  return call_on<"aclrtSubscribeReport">(stream, [&](const Entry &, const AclStreamPtr &s) -> Result {
    const Lock mine(s->report_mutex);
    if (s->reports) return kStreamSubscribed;
    s->reports = reports_of(thread, true);
    s->report_thread = thread;
    Reports &reports = *s->reports;
    const Lock lock(reports.mutex);
    ++reports.streams;
    return kSuccess;
  });
}

EXPORT Result aclrtUnSubscribeReport(uint64_t thread, StreamHandle stream) {
  return call_on<"aclrtUnSubscribeReport">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    const Lock mine(s->report_mutex);
    if (!s->reports) return kStreamNotSubscribed;
    if (s->report_thread != thread) return kThreadNotSubscribed;
    const std::shared_ptr<Reports> reports = s->reports;
    const auto all = threads().lock();
    const Lock lock(reports->mutex);
    if (!s->idle() || (reports->streams == 1 && reports->pending.load() > 0))
      return number(misuse(e.name(), Code::BadHandle, "the stream has still something to do"));
    if (--reports->streams == 0) all->erase(thread);
    s->reports.reset();
    return kSuccess;
  });
}

EXPORT Result aclrtLaunchCallback(void (*function)(void *), void *argument, int blocks, StreamHandle stream) {
  return call_on<"aclrtLaunchCallback">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (!function || (blocks != kCallbackNoBlock && blocks != kCallbackBlock)) return kInvalidParameter;
    std::shared_ptr<Reports> reports;
    {
      const Lock mine(s->report_mutex);
      reports = s->reports;
    }
    if (!reports) return kStreamNotSubscribed;
    const auto report = std::make_shared<Report>();
    report->function = function;
    report->argument = argument;
    Device &d = s->device;
    const auto lock = d.enter();
    if (d.broken()) return d.broken();
    return number(submit_locked(lock, e, s,
                                [report, reports, blocks, s] {
                                  launch(reports, report);
                                  if (blocks == kCallbackNoBlock) return;
                                  poll_until([&] { return report->done.load(std::memory_order_acquire) || s->given_up(); });
                                }),
                  &d);
  });
}

// Runs at most one callback. The thread needs no context.
EXPORT Result aclrtProcessReport(int32_t ms) {
  return call<"aclrtProcessReport">([&](const Entry &) -> Result {
    if (!initialized()) return kUninitialized;
    if (ms < -1) return kInvalidValue;
    const auto reports = reports_of(static_cast<uint64_t>(::pthread_self()), false);
    return reports ? run_one(*reports, ms) : static_cast<Result>(kThreadNotSubscribed);
  });
}
