#include "process/progress.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "process/context_threads.hpp"
#include "process/processors.hpp"

namespace isthmus::process {

namespace {

// UCX may hold bytes back that a peer waits for, when the operation that sent them is over: where a socket was full, or a connection begins.
constexpr int64_t kLinksNapNs = 20'000'000;

thread_local const Progress *runs_here = nullptr;  // this thread is the progress thread of this Progress
const InChild forgets_runs([](void *) noexcept { runs_here = nullptr; });

}  // namespace

void Progress::begin_thread() {
  ProgressThread &mine = threads_.emplace_back();
  try {
    mine.thread = begin_own_thread([this, &mine] {
      struct Over {  // also where a callback of the program's ends this thread, or an interpreter that ends unwinds it
        Progress &progress;
        ProgressThread &thread;
        ~Over() {
          progress.stand_in();
          thread.over.store(true, std::memory_order_release);
        }
      } const over{*this, mine};
      runs_here = this;
      loop();
    });
  } catch (...) {
    threads_.pop_back();
    throw;
  }
}

void Progress::begin() {
  const Lock lock(threads_mutex_);
  begin_thread();
}

void Progress::stand_in() noexcept {
  if (runs_here != this) return;
  const Lock lock(threads_mutex_);
  if (stop_.load(std::memory_order_acquire)) return;
  threads_.remove_if([](ProgressThread &t) {
    const bool over = t.over.load(std::memory_order_acquire);
    if (over) t.thread.join();
    return over;
  });
  try {
    due_.store(calls_.load(std::memory_order_relaxed) != nullptr,
               std::memory_order_release);  // this thread may have more of them
    begin_thread();
    runs_here = nullptr;
  } catch (const std::exception &e) {
    ISTHMUS_WARN(
        "a callback waits on the thread that drives operations for which nobody waits, and no other can be started: {}",
        e.what());
  }
}

void Progress::end() noexcept {
  stop_.store(true, std::memory_order_release);
  bell_.wake();
  arena_.doorbell().wake();
  std::list<ProgressThread> all;
  {
    const Lock lock(threads_mutex_);
    all.swap(threads_);
  }
  for (ProgressThread &each : all) each.thread.join();
}

void Progress::activate(LocalRank &rank) {
  if (!rank.active_.exchange(true, std::memory_order_acq_rel)) {
    auto shared = rank.itself().lock();
    if (!shared) return;
    const Lock lock(mutex_);
    if (std::find(active_.begin(), active_.end(), shared) == active_.end()) active_.push_back(std::move(shared));
    version_.fetch_add(1, std::memory_order_release);
  }
  bell_.ring();
  arena_.doorbell().ring();  // where the thread sleeps while ranks are listed already
}

void Progress::forget(const std::shared_ptr<LocalRank> &rank) {
  const Lock lock(mutex_);
  std::erase(active_, rank);
  version_.fetch_add(1, std::memory_order_release);
}

void Progress::look_at_list(Listed &listed) {
  if (version_.load(std::memory_order_acquire) == listed.version) return;
  const Lock lock(mutex_);
  listed.version = version_.load(std::memory_order_relaxed);
  listed.ranks = active_;
}

bool Progress::keep_listed(const std::shared_ptr<LocalRank> &rank) {
  rank->active_.store(false, std::memory_order_release);
  const Lock lock(mutex_);
  if (rank->has_work()) {
    rank->active_.store(true, std::memory_order_release);
  } else if (!rank->active_.load(std::memory_order_acquire)) {
    std::erase(active_, rank);
    version_.fetch_add(1, std::memory_order_release);
    return false;
  }
  return true;
}

Progress::Round Progress::drive(const Listed &listed) {
  const Links::Driving all;
  Round round;
  for (const auto &rank : listed.ranks) {
    if (!rank->has_work() && !keep_listed(rank)) continue;
    round.work = true;
    if (rank->waiters() == 0) {
      round.waited_for = false;
      round.moved |= rank->drive(LookAt::AllLinks);
    }
  }
  return round;
}

void Progress::call_soon(void (*calls)()) noexcept {
  calls_.store(calls, std::memory_order_relaxed);
  due_.store(true, std::memory_order_release);
  bell_.ring();
  arena_.doorbell().ring();
}

void Progress::make_calls() {
  if (due_.load(std::memory_order_acquire) && due_.exchange(false, std::memory_order_acq_rel))
    calls_.load(std::memory_order_relaxed)();
}

void Progress::sleep_without_work(Listed &listed) {
  listed.ranks.clear();  // ranks must not live on here
  listed.version = ~uint64_t{0};
  if (links_.need_driving()) {
    const Links::Driving all;
    links_.drive();
  }
  Nap nap(bell_);
  if (stop_.load(std::memory_order_acquire) || due_.load(std::memory_order_acquire)) return;
  bool any;
  {
    const Lock lock(mutex_);
    any = !active_.empty();
  }
  if (!any) nap.sleep(links_.need_driving() ? kLinksNapNs : 1'000'000'000);
}

void Progress::sleep_with_work(const Listed &listed, int64_t idle_ns) {
  const bool polls = std::any_of(listed.ranks.begin(), listed.ranks.end(), [](const auto &r) { return r->polls_device(); });
  const bool spare = processors_to_spare();
  const Links::Driving all;
  // Elsewhere a nap is as long as on a thread of the program's, whose timers have slack: others need the processor.
  const int64_t nap_ns = polls ? Drivable::device_nap(idle_ns, spare) + (spare ? 0 : kUsualSlackNs) : 5'000'000;
  links_.sleep(links_.count() != 0, nap_ns, [&](LookAt links) {
    for (const auto &rank : listed.ranks)
      if (rank->has_work() && rank->waiters() == 0 && rank->drive(links)) return true;
    return version_.load(std::memory_order_acquire) != listed.version || stop_.load(std::memory_order_acquire) ||
           due_.load(std::memory_order_acquire);
  });
}

void Progress::loop() {
  enter_context_thread();
  ::pthread_setname_np(::pthread_self(), "isthmus-engine");
  Listed listed;
  int64_t idle_since = 0, looked = 0;
  uint32_t busy = 0;
  while (!stop_.load(std::memory_order_acquire) && runs_here == this) {
    look_at_list(listed);
    const Round round = drive(listed);
    make_calls();
    if (runs_here != this) return;  // another thread has taken this one's place in a callback
    if (round.moved) {
      idle_since = 0;
      if (++busy % 1024 != 0) continue;  // traffic must not keep the thread from the clock
    }
    const int64_t now = now_ns();
    if (round.work && now - looked > 1'000'000) {
      looked = now;
      for (const auto &rank : listed.ranks)
        if (rank->has_work()) rank->check_deadlines(now);
    }
    if (!round.work) {
      sleep_without_work(listed);
      idle_since = 0;
    } else if (round.waited_for) {  // the waiter drives; this thread is there soon after the waiter has gone
      Nap nap(bell_);
      if (!due_.load(std::memory_order_acquire)) nap.sleep(1'000'000);
    } else {
      if (idle_since == 0) idle_since = now;
      if (now - idle_since < std::min<int64_t>(spin_ns_, 20'000)) ::sched_yield();
      else sleep_with_work(listed, now - idle_since);
    }
  }
}

}  // namespace isthmus::process
