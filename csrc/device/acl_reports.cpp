#include "device/acl_reports.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/lock.hpp"
#include "base/own_thread.hpp"

namespace isthmus::device {
namespace {

using namespace acl_abi;
using namespace std::chrono_literals;

constexpr int kAskMs = 100;  // how long one call waits for a function; so long the end of the process may take
constexpr int64_t kSoon = 1'000'000;

// The threads of the reports of all devices. The reports are never destroyed. No thread may be in the library when its destructors run.
struct Started {
  Mutex mutex;
  std::vector<std::pair<std::atomic<bool> *, std::atomic<bool> *>> threads ISTHMUS_GUARDED_BY(mutex);  // stop, ended
  pid_t process = ::getpid();
};
Started &the_started() {
  static auto *const started = new Started;
  return *started;
}
void stop_all() {
  Started &s = the_started();
  if (::getpid() != s.process) return;  // the threads are the parent's
  const Lock lock(s.mutex);
  for (const auto &[stop, ended] : s.threads) stop->store(true);
  const Deadline deadline(1);
  for (const auto &[stop, ended] : s.threads)
    while (!ended->load() && !deadline.passed()) std::this_thread::sleep_for(1ms);
}

}  // namespace

Result AclReports::subscribe(Handle context, Handle stream, Subscribed *&subscribed) {
  const Lock lock(mutex_);
  for (const auto &s : streams_)
    if (s->stream == stream) {
      subscribed = s.get();
      return kSuccess;
    }
  if (thread_.load() == 0) start(context);
  const Result r = f_.aclrtSubscribeReport(thread_.load(), stream);
  if (r != kSuccess) return r;
  streams_.push_back(std::make_unique<Subscribed>(stream));
  subscribed = streams_.back().get();
  return kSuccess;
}

void AclReports::forget(Handle stream, const Deadline &deadline) noexcept {
  std::unique_ptr<Subscribed> found;
  {
    const Lock lock(mutex_);
    const auto it = std::find_if(streams_.begin(), streams_.end(), [&](const auto &s) { return s->stream == stream; });
    if (it == streams_.end()) return;
    found = std::move(*it);
    streams_.erase(it);
  }
  const auto all_called = [&] { return found->called.load(std::memory_order_acquire) >= found->launched.load(); };
  while (!all_called() && !deadline.passed()) std::this_thread::sleep_for(100us);
  f_.aclrtUnSubscribeReport(thread_.load(), stream);
  if (!all_called()) (void)found.release();  // a call may still come
}

void AclReports::start(Handle context) {
  Started &s = the_started();
  {
    const Lock lock(s.mutex);
    s.threads.reserve(s.threads.size() + 1);  // nothing may fail once the thread has begun
    try {
      begin_own_thread([this, context] { serve(context); }).detach();
    } catch (const std::system_error &e) {
      fail(Code::Resource, "Ascend ACL: no thread can be begun for the functions that streams call: {}", e.what());
    }
    if (s.threads.empty()) std::atexit(stop_all);
    s.threads.emplace_back(&stop_, &ended_);
  }
  while (thread_.load() == 0) std::this_thread::sleep_for(50us);
}

void AclReports::serve(Handle context) noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-acl");
  f_.aclrtSetCurrentContext(context);
  thread_.store(static_cast<uint64_t>(::pthread_self()));
  while (!stop_.load()) {
    const int64_t begin = now_ns();
    // Where no stream is subscribed, the library's call does not wait.
    if (f_.aclrtProcessReport(kAskMs) != kSuccess && now_ns() - begin < kSoon) std::this_thread::sleep_for(1ms);
  }
  ended_.store(true);
}

}  // namespace isthmus::device
