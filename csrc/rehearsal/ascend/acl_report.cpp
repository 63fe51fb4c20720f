// The simulated libascendcl.so: callbacks, the older way to have the host do something in the order of a stream. The program gives a stream
// one of its threads, and that thread asks for what there is to do.
#include <pthread.h>

#include <condition_variable>
#include <deque>

#include "ascend/acl_abi.hpp"

namespace rehearsal::acl {

struct Report {
  void (*function)(void *) = nullptr;
  void *argument = nullptr;
  std::atomic<bool> done{false};
};

struct Reports {
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::shared_ptr<Report>> queue;
  size_t streams = 0;
  std::atomic<size_t> pending{0};  // launched, and not run
};

namespace {

struct Threads {
  std::mutex mutex;
  std::map<uint64_t, std::shared_ptr<Reports>> all;
};
Threads &threads() {
  static Threads *const the_threads = new Threads;
  return *the_threads;
}

std::shared_ptr<Reports> reports_of(uint64_t thread, bool make) {
  Threads &t = threads();
  const std::lock_guard lock(t.mutex);
  const auto it = t.all.find(thread);
  if (it != t.all.end()) return it->second;
  return make ? t.all.emplace(thread, std::make_shared<Reports>()).first->second : nullptr;
}

void launch(const std::shared_ptr<Reports> &reports, const std::shared_ptr<Report> &report) {
  {
    const std::lock_guard lock(reports->mutex);
    reports->queue.push_back(report);
  }
  reports->came.notify_all();
}

Result run_one(Reports &reports, int32_t ms) {
  std::shared_ptr<Report> report;
  {
    std::unique_lock lock(reports.mutex);
    const auto there = [&] { return !reports.queue.empty(); };
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
    const std::lock_guard mine(s->report_mutex);
    if (s->reports) return kStreamSubscribed;
    s->reports = reports_of(thread, true);
    s->report_thread = thread;
    const std::lock_guard lock(s->reports->mutex);
    ++s->reports->streams;
    return kSuccess;
  });
}

EXPORT Result aclrtUnSubscribeReport(uint64_t thread, StreamHandle stream) {
  return call_on<"aclrtUnSubscribeReport">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    const std::lock_guard mine(s->report_mutex);
    if (!s->reports) return kStreamNotSubscribed;
    if (s->report_thread != thread) return kThreadNotSubscribed;
    if (!s->idle() || (s->reports->streams == 1 && s->reports->pending.load() > 0))
      return number(misuse(e.name(), Code::BadHandle, "the stream has still something to do"));
    Threads &t = threads();
    const std::lock_guard all(t.mutex);
    const std::lock_guard lock(s->reports->mutex);
    if (--s->reports->streams == 0) t.all.erase(thread);
    s->reports.reset();
    return kSuccess;
  });
}

EXPORT Result aclrtLaunchCallback(void (*function)(void *), void *argument, int blocks, StreamHandle stream) {
  return call_on<"aclrtLaunchCallback">(stream, [&](const Entry &e, const AclStreamPtr &s) -> Result {
    if (!function || (blocks != kCallbackNoBlock && blocks != kCallbackBlock)) return kInvalidParameter;
    std::shared_ptr<Reports> reports;
    {
      const std::lock_guard mine(s->report_mutex);
      reports = s->reports;
    }
    if (!reports) return kStreamNotSubscribed;
    const auto report = std::make_shared<Report>();
    report->function = function;
    report->argument = argument;
    Device &d = s->device;
    const auto lock = d.enter();
    if (d.broken()) return d.broken();
    if (!s->capture()) reports->pending.fetch_add(1);
    return number(submit_locked(e, s,
                                [report, reports, blocks, &d] {
                                  launch(reports, report);
                                  if (blocks == kCallbackNoBlock) return;
                                  poll_until([&] { return report->done.load(std::memory_order_acquire) || d.broken(); });
                                }),
                  &d);
  });
}

// Runs at most one. The thread needs no context for it.
EXPORT Result aclrtProcessReport(int32_t ms) {
  return call<"aclrtProcessReport">([&](const Entry &) -> Result {
    if (!initialized()) return kUninitialized;
    if (ms < -1) return kInvalidValue;
    const auto reports = reports_of(static_cast<uint64_t>(::pthread_self()), false);
    return reports ? run_one(*reports, ms) : static_cast<Result>(kThreadNotSubscribed);
  });
}
