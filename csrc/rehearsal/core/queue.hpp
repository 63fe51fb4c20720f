// A hardware queue: one thread that runs items in order and stands at the first that cannot go on.
#pragma once

#include <time.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "core/ledger.hpp"

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
  for (int i = 0; !ready(); ++i) {
    const timespec nap{0, i < 5000 ? 30'000 : 200'000};
    ::nanosleep(&nap, nullptr);
  }
}

void sleep_us(double us);
int64_t now_us() noexcept;

struct Item {
  const char *call = "";
  std::shared_ptr<Stream> stream;
  std::function<void()> body;
  Extras extras;
  bool quick = false;  // a mark of the host's making: takes no time, and is done even if the device failed
};

class Queue {
 public:
  Queue(Device &device, int number);
  void push(Item item);  // blocks while the queue is full
  void wait_idle();
  uint64_t pushed();
  void wait_done(uint64_t count);

 private:
  void loop();
  void run(Item &item);

  Device &device_;
  const size_t depth_;
  std::mt19937_64 random_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Item> items_;  // the first one is running
  uint64_t pushed_ = 0, finished_ = 0;
};

}  // namespace rehearsal
