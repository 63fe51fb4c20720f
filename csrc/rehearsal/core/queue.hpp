// Queue is a simulated hardware queue: one thread, which runs items in the order in which they were pushed. If an item cannot go on, all
// items behind that item wait, also those of other streams.
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

// A queue's thread waits in this way for a word that the program or another process writes. Neither of them would wake the thread.
// Returns when ready() is true.
template <class Ready>
void poll_until(Ready ready) {
  for (int i = 0; i < 200; ++i) {
    if (ready()) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // A nap is a sixteenth of the wait so far, from 30 to 200 us. So the end of a wait is noticed soon, and a long wait costs little.
  for (long waited = 0; !ready();) {
    const timespec nap{0, std::clamp(waited / 16, 30'000L, 200'000L)};
    ::nanosleep(&nap, nullptr);
    waited += nap.tv_nsec;
  }
}

void sleep_us(double us);
int64_t now_us() noexcept;  // CLOCK_MONOTONIC
int64_t now_ns() noexcept;  // likewise

// A copy engine of a device: makes the copies of one direction, one after the other, for all queues of the device.
class CopyEngine {
 public:
  // Takes the engine for a copy that may begin at `ready_ns`. Returns the time at which the copy ends. `gbps`: 10^9 bytes a second.
  int64_t reserve(int64_t ready_ns, size_t bytes, double gbps);
  // A copy of the engine has begun and ended at these times of the clock. Returns for how long the engine has worked since it was last told, so
  // that copies that overlap, because sleeps are late, count once.
  int64_t worked(int64_t begin_ns, int64_t end_ns);

 private:
  Mutex mutex_;
  int64_t free_ns_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  int64_t seen_ns_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // until then worked() has counted
};

// The first `items` items of a stream.
struct Reached {
  std::shared_ptr<Stream> stream;
  uint64_t items = 0;
};

// One piece of work for a stream.
struct Item {
  const char *call = "";  // of the program, that submitted the item
  std::shared_ptr<Stream> stream;
  std::vector<Reached> behind;  // items of other queues that come first
  std::function<void()> body;
  Extras extras;
  bool quick = false;  // a mark: takes no time, and runs even if the device has failed
  int64_t submitted_ns = 0;
};

class Queue {
 public:
  Queue(Device &device, int number);
  void push(Item item);            // waits while the queue is full
  void wait_idle();                // until the queue is empty
  uint64_t pushed();               // how many items, since the beginning
  void wait_done(uint64_t count);  // until so many items are done, since the beginning

  // For the body of the item that runs; called by the queue's thread. ready_ns() is the time at which the item could begin, by the queue's
  // clock. end_at() waits until a time, and sets the clock to that time. If the sleep was too long, the clock does not show that. So the
  // errors of many sleeps do not add up. If a body does not call end_at(), its item ends when the body returns.
  // `awake`: end_at() wakes up early and spins, and so is not late by a thread's time to wake up.
  int64_t ready_ns() const noexcept { return clock_ns_; }
  void end_at(int64_t ns, bool awake = false);

 private:
  void loop();
  void run(Item &item);
  void wait_behind(const Item &item);

  Device &device_;
  const size_t depth_;
  std::mt19937_64 random_;
  int64_t clock_ns_ = 0;  // this and timed_: of the queue's thread
  bool timed_ = false;    // the body has called end_at()
  Mutex mutex_;
  Condition work_, done_;
  std::deque<Item> items_ ISTHMUS_GUARDED_BY(mutex_);  // the first one is running
  uint64_t pushed_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  uint64_t finished_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace rehearsal
