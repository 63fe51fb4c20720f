// A hardware queue: one thread that runs items in order and stands at the first that cannot go on.
#pragma once

#include <time.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/ledger.hpp"
#include "core/lock.hpp"

namespace rehearsal {

class Device;
class Stream;

// The engine's threads wait like this: their counters are written by the program or by another process, so nobody could wake them.
template <class Ready>
void poll_until(Ready ready) {
  for (int i = 0; i < 200; ++i) {
    if (ready()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // A sixteenth of what they have waited already: late by little, and cheap where a wait is long.
  for (long waited = 0; !ready();) {
    const timespec nap{0, std::clamp(waited / 16, 30'000L, 200'000L)};
    ::nanosleep(&nap, nullptr);
    waited += nap.tv_nsec;
  }
}

void sleep_us(double us);
int64_t now_us() noexcept;
int64_t now_ns() noexcept;

// What moves the bytes of one direction of a device, for all of its queues, one copy after the other.
class CopyEngine {
 public:
  // Takes it for the next copy, which is ready at that time; returns when the copy ends.
  int64_t reserve(int64_t ready_ns, size_t bytes, double gbps);

 private:
  Mutex mutex_;
  int64_t free_ns_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

// So much of what a stream was given.
struct Reached {
  std::shared_ptr<Stream> stream;
  uint64_t items = 0;
};

struct Item {
  const char *call = "";
  std::shared_ptr<Stream> stream;
  std::vector<Reached> behind;  // what has to be done in other queues first
  std::function<void()> body;
  Extras extras;
  bool quick = false;  // a mark of the host's making: takes no time, and is done even if the device failed
  int64_t submitted_ns = 0;
};

class Queue {
 public:
  Queue(Device &device, int number);
  void push(Item item);  // blocks while the queue is full
  void wait_idle();
  uint64_t pushed();
  void wait_done(uint64_t count);

  // For the body of the item that runs: when it could begin, by the queue's clock; and that it ends at that time, which is
  // waited for. What a sleep is too long by is not in the clock, so it does not add up. A body that says nothing ends when it
  // returns.
  int64_t ready_ns() const noexcept { return clock_ns_; }
  void end_at(int64_t ns, bool awake = false);  // `awake`: not late by what it takes to wake up

 private:
  void loop();
  void run(Item &item);
  void wait_behind(const Item &item);

  Device &device_;
  const size_t depth_;
  std::mt19937_64 random_;
  int64_t clock_ns_ = 0;  // these two are the queue's thread's
  bool timed_ = false;    // the body has called end_at
  Mutex mutex_;
  Condition work_, done_;
  std::deque<Item> items_ ISTHMUS_GUARDED_BY(mutex_);  // the first one is running
  uint64_t pushed_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace rehearsal
