#include "device/abandoned.hpp"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/seen_time.hpp"
#include "device/calling.hpp"

namespace isthmus::device {
namespace {

std::atomic<size_t> the_abandoned{0};
std::atomic<int> the_stuck{0};
const InChild forgets_threads([](void *) noexcept {  // a child has none of those threads
  the_abandoned.store(0);
  the_stuck.store(0);
  vendor_call_here = nullptr;
});

void end_without_destructors(int status, void *) {
  if (the_stuck.load() == 0) return;
  std::fflush(nullptr);
  ::_exit(status);
}

constexpr std::chrono::duration<double> kLook{0.05};
static_assert(kLook <= std::chrono::nanoseconds(SeenTime::kMostBetweenLooks));

struct Watched {
  std::function<Status()> call;
  std::function<void()> back;
  Mutex mutex;
  Condition ended;
  std::optional<Status> outcome ISTHMUS_GUARDED_BY(mutex);
  bool left ISTHMUS_GUARDED_BY(mutex) = false;

  void run() {
    Status s;
    try {
      s = call();
    } catch (const Error &e) { s = {e.code(), e.text()}; } catch (const std::exception &e) {
      s = {Code::Resource, e.what()};
    }
    bool late = false;
    {
      const Lock lock(mutex);
      outcome = std::move(s);
      late = left;
      ended.notify_all();
    }
    if (!late) return;
    if (back) back();
    // With the last of what they hold, perhaps. That may call the vendor's library, so the thread is not back before.
    call = nullptr;
    back = nullptr;
    abandoned_thread_is_back();
  }
};

}  // namespace

size_t abandoned_threads() noexcept { return the_abandoned.load(std::memory_order_relaxed); }
int threads_left_behind() noexcept { return the_stuck.load(); }
void count_abandoned_thread() noexcept { the_abandoned.fetch_add(1, std::memory_order_relaxed); }

void abandon_thread() noexcept {
  static std::once_flag once;
  std::call_once(once, [] { ::on_exit(end_without_destructors, nullptr); });
  the_stuck.fetch_add(1);
  count_abandoned_thread();
}
void abandoned_thread_is_back() noexcept { the_stuck.fetch_sub(1); }

void keep_for_good(void *memory) noexcept {
  struct Kept {
    void *memory;
    const Kept *before;
  };
  static std::atomic<const Kept *> last{nullptr};
  if (!memory) return;
  auto *const kept = new (std::nothrow) Kept{memory, last.load()};
  if (!kept) return;  // without a record the memory stays all the same
  while (!last.compare_exchange_weak(kept->before, kept)) {}
}

std::optional<Status> call_within(double seconds, std::function<Status()> call, std::function<void()> back,
                                  const std::function<bool()> &enough) {
  const auto watched = std::make_shared<Watched>();
  watched->call = std::move(call);
  watched->back = std::move(back);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread([watched] { watched->run(); });
  } catch (const std::exception &) {}
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!thread.joinable()) {
    watched->run();
    const Lock lock(watched->mutex);
    return std::move(watched->outcome);
  }
  std::optional<Status> outcome;
  {
    Lock lock(watched->mutex);
    const auto over = [&]() ISTHMUS_REQUIRES(watched->mutex) { return watched->outcome.has_value(); };
    const std::chrono::duration<double> patience(seconds), look = std::min(patience, kLook);
    SeenTime waited;
    const auto lasts = [&] { return static_cast<double>(waited.look(now_ns())) * 1e-9 < seconds; };
    while (lasts() && !watched->ended.wait_for(lock, look, over) && !(enough && enough())) {}
    outcome = std::move(watched->outcome);
    if (!outcome) {
      watched->left = true;
      abandon_thread();
    }
  }
  if (!outcome) {
    thread.detach();
    return std::nullopt;
  }
  thread.join();
  return outcome;
}

}  // namespace isthmus::device
