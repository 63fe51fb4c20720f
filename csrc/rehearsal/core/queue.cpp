#include "core/queue.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "core/machine.hpp"

namespace rehearsal {

namespace {
constexpr int64_t kWakeUpNs = 100'000;  // a sleep may be too long by about so much
}

void sleep_us(double us) {
  if (us <= 0) return;
  const auto ns = static_cast<int64_t>(us * 1000);
  timespec nap{ns / 1'000'000'000, ns % 1'000'000'000};
  while (::nanosleep(&nap, &nap) != 0) {}
}

int64_t now_ns() noexcept {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}
int64_t now_us() noexcept { return now_ns() / 1000; }

int64_t CopyEngine::reserve(int64_t ready_ns, size_t bytes, double gbps) {
  const Lock lock(mutex_);
  free_ns_ = std::max(ready_ns, free_ns_) + static_cast<int64_t>(static_cast<double>(bytes) / gbps);  // GB/s: bytes a ns
  return free_ns_;
}

int64_t CopyEngine::worked(int64_t begin_ns, int64_t end_ns) {
  const Lock lock(mutex_);
  const int64_t more = std::max<int64_t>(end_ns - std::max(begin_ns, seen_ns_), 0);
  seen_ns_ = std::max(seen_ns_, end_ns);
  return more;
}

Queue::Queue(Device &device, int number)
    : device_(device),
      depth_(settings().queue_depth),
      random_(settings().seed * 1'000'003 + static_cast<unsigned long>(::getpid()) * 101 +
              static_cast<unsigned long>(device.ordinal() * 16 + number)) {
  // The thread blocks all signals, so they go to threads of the program. The thread is never joined, so an exit does not wait for it.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([this] { loop(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Queue::push(Item item) {
  Lock lock(mutex_);
  done_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return items_.size() < depth_; });
  item.submitted_ns = now_ns();
  item.stream->submitted.fetch_add(1, std::memory_order_relaxed);
  items_.push_back(std::move(item));
  ++pushed_;
  work_.notify_one();
}

void Queue::wait_idle() {
  Lock lock(mutex_);
  done_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return items_.empty(); });
}

uint64_t Queue::pushed() {
  const Lock lock(mutex_);
  return pushed_;
}

void Queue::wait_done(uint64_t count) {
  Lock lock(mutex_);
  done_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return finished_ >= count; });
}

void Queue::end_at(int64_t ns, bool awake) {
  const int64_t wake = ns - (awake ? kWakeUpNs : 0);
  const timespec until{wake / 1'000'000'000, wake % 1'000'000'000};
  if (wake > now_ns())
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {}
  while (now_ns() < ns) {}
  clock_ns_ = ns;
  timed_ = true;
}

void Queue::wait_behind(const Item &item) {
  if (item.behind.empty()) return;
  poll_until([&] {
    return item.stream->given_up() || std::all_of(item.behind.begin(), item.behind.end(), [](const Reached &r) {
             return r.stream->done.load(std::memory_order_acquire) >= r.items;
           });
  });
  clock_ns_ = std::max(clock_ns_, now_ns());
}

void Queue::run(Item &item) {
  wait_behind(item);
  if (item.quick) return item.body();
  if (item.stream->given_up()) return;
  const long jitter = settings().jitter_us;
  double pause = item.extras.slow_ms * 1000.0;
  if (jitter > 0 && random_() % 4 == 0) pause += static_cast<double>(random_() % static_cast<unsigned long>(jitter + 1));
  sleep_us(pause);  // in full, even if the queue is late
  end_at(clock_ns_ + static_cast<int64_t>(pause * 1000) + settings().latency_us * 1000);
  timed_ = false;
  if (item.extras.hang) return poll_until([&] { return item.stream->given_up(); });
  if (item.extras.late) return device_.break_down(item.extras.late);
  item.body();
}

void Queue::loop() {
  ::prctl(PR_SET_NAME, "rehearsal queue");
  ::prctl(PR_SET_TIMERSLACK, 1000);
  while (true) {
    Item *item = nullptr;
    {
      Lock lock(mutex_);
      work_.wait(lock, [&]() ISTHMUS_REQUIRES(mutex_) { return !items_.empty(); });
      item = &items_.front();  // an item stays in its place while others are pushed behind it
    }
    clock_ns_ = std::max(clock_ns_, item->submitted_ns);
    timed_ = false;
    run(*item);
    if (!timed_) clock_ns_ = now_ns();
    const std::shared_ptr<Stream> stream = item->stream;
    item->behind.clear();
    item->body = nullptr;  // the body's memory and communicators are let go before the item counts as done
    {
      const Lock lock(mutex_);
      stream->done.fetch_add(1, std::memory_order_release);
      items_.pop_front();
      ++finished_;
    }
    done_.notify_all();
    device_.announce();
  }
}

}  // namespace rehearsal
