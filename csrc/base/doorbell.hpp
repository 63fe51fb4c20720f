// A doorbell: threads sleep at it until somebody rings. A doorbell is a futex that may lie in memory of several processes, so other processes
// can wake the sleepers. A thread that sleeps on sockets instead is woken by a datagram to the BellSocket of its process. The socket's name
// lies beside the futex.
//
//   sleeper                                      ringer (perhaps of another process)
//     Nap(): sleepers += 1                         stores what the sleeper waits for
//            seen = bell                           ring(): full fence
//            full fence                                    loads `sleepers`
//     looks once more at what it waits for                 0: nobody sleeps, and the ringer goes on
//       it is there: does not sleep                        else: bell += 1, FUTEX_WAKE
//       else sleep(): FUTEX_WAIT while bell == seen
//         <---------------------------------------         wakes, or does not even sleep: bell has changed
//     ~Nap(): sleepers -= 1
//
// The two fences make sure that no wake is lost (Dekker): the ringer sees the sleeper, or the sleeper sees the ringer's store.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

#include "base/handles.hpp"

namespace isthmus {

// A full fence. ThreadSanitizer knows no fences. A read-modify-write of one location that both sides share orders as well.
inline void full_fence([[maybe_unused]] std::atomic<uint32_t> &shared) noexcept {
#if defined(__SANITIZE_THREAD__)
  shared.fetch_add(0, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

struct alignas(64) Doorbell {
  static constexpr size_t kName = 16;
  std::atomic<uint32_t> sleepers{0};  // threads that sleep or are about to sleep
  std::atomic<uint32_t> bell{0};      // the futex word, whose value only has to change
  std::atomic<uint32_t> pollers{0};   // the sleepers that sleep on sockets
  std::atomic<uint32_t> called{0};    // a datagram is on its way to the pollers
  char name[kName] = {};              // of the BellSocket, if there is one; written before anybody polls

  // Called after a store for which a sleeper may wait. The fence orders the store before the load of `sleepers`. The sleeper's fence in
  // Nap orders the sleeper's store to `sleepers` before its last look at the condition. So one of the two sees the other.
  void ring() noexcept {
    full_fence(sleepers);
    if (sleepers.load(std::memory_order_acquire) != 0) wake();
  }
  void wake(int most = INT_MAX) noexcept {  // `most`: of the threads that sleep on the futex
    bell.fetch_add(1, std::memory_order_release);
    // The futex is woken always: the two counters are not read at one time, so their difference does not tell that nobody sleeps here.
    ::syscall(SYS_futex, reinterpret_cast<uint32_t *>(&bell), FUTEX_WAKE, most, nullptr, nullptr, 0);
    if (pollers.load(std::memory_order_relaxed) != 0 && called.exchange(1, std::memory_order_acq_rel) == 0) call();
  }

 private:
  void call() noexcept;  // sends the datagram
};

// The socket that wakes the threads of this process that sleep on sockets. From the same socket this process wakes other processes. A process
// has one. Any process of the network namespace may send to the socket, which wakes this process for nothing.
class BellSocket {
 public:
  explicit BellSocket(Doorbell &bell);  // gives it a name; throws Error(System)
  ~BellSocket();
  BellSocket(const BellSocket &) = delete;
  BellSocket &operator=(const BellSocket &) = delete;
  int fd() const noexcept { return socket_.get(); }
  // Called after the socket was readable, and before the thread looks at the condition again.
  void answer() noexcept;

 private:
  Doorbell &bell_;
  UniqueFd socket_;
};

// A nap: construct it, look at the condition once more, and sleep() if the condition still does not hold.
class Nap {
 public:
  explicit Nap(Doorbell &bell) noexcept : bell_(bell) {
    bell_.sleepers.fetch_add(1, std::memory_order_relaxed);
    seen_ = bell_.bell.load(std::memory_order_acquire);
    full_fence(bell_.sleepers);
  }
  ~Nap() { bell_.sleepers.fetch_sub(1, std::memory_order_relaxed); }
  Nap(const Nap &) = delete;
  Nap &operator=(const Nap &) = delete;
  void sleep(int64_t ns) noexcept {
    timespec t{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
    ::syscall(SYS_futex, reinterpret_cast<uint32_t *>(&bell_.bell), FUTEX_WAIT, seen_, &t, nullptr, 0);
  }

 private:
  Doorbell &bell_;
  uint32_t seen_;
};

// The nap of a thread that then sleeps in poll(), on the BellSocket among others. One thread of the process at a time.
class PollNap {
 public:
  explicit PollNap(Doorbell &bell) noexcept : bell_(bell) {
    bell_.pollers.fetch_add(1, std::memory_order_relaxed);
    bell_.sleepers.fetch_add(1, std::memory_order_release);
    full_fence(bell_.sleepers);
  }
  ~PollNap() {
    bell_.sleepers.fetch_sub(1, std::memory_order_relaxed);
    bell_.pollers.fetch_sub(1, std::memory_order_relaxed);
  }
  PollNap(const PollNap &) = delete;
  PollNap &operator=(const PollNap &) = delete;

 private:
  Doorbell &bell_;
};

}  // namespace isthmus
