// Counts the connections that come to listening sockets of somebody else in this process, whose owner takes each at once.
//
//   owner's socket --the kernel, for each connection--> queued signal --to the hearing thread alone--> hear()
//
// Why not poll() or epoll: both look whether a connection waits now, so they miss those that the owner was quicker to take. A copy of the
// descriptor would keep the socket open when its owner closes it. So nothing is kept of the socket, and the watch ends with it.
//
// The program hears nothing of the signals: they go to one thread of ours, in which all signals are blocked, and are read there. No handler
// is set, so the program may use the number too.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/error.hpp"
#include "base/lock.hpp"
#include "net/fork_guard.hpp"

namespace isthmus::bootstrap {

// Whose a socket is, and where the socket listens.
struct WatchedListener {
  uint64_t owner = 0;
  std::string at;  // "10.0.0.1:4000"
};

class ListenerWatch {
 public:
  ListenerWatch();
  // Before the first watch(). `thread`, whose number is `tid`, is to hear. All its signals are blocked, and it lives as long as this object.
  void begin(pthread_t thread, pid_t tid) noexcept;
  // Any thread. `listener` stays open until the call returns. From then on each connection is heard once. Not Ok: nothing is.
  Status watch(int listener, uint64_t owner);

  // The hearing thread's.
  // Readable when hear() has something to say. -1: it never has.
  int fd() const noexcept { return off_.load(std::memory_order_relaxed) ? -1 : signals_.get(); }
  void hear(const std::function<void(const WatchedListener &)> &arrived);

 private:
  struct Told {                                            // by those who watch
    std::map<int, std::pair<int, WatchedListener>> begun;  // the descriptor and what it is, by the number in the signal
    int next = 0;
  };

  const net::GuardedFd signals_;
  pthread_t thread_{};
  pid_t tid_ = 0;                 // 0: nobody is to hear
  std::atomic<bool> off_{false};  // the hearing thread has stopped
  Guarded<Told> told_;
  std::map<int, WatchedListener> by_fd_;  // the hearing thread's
  int in_vain_ = 0;                       // the same; how often in a row there was nothing to hear
};

}  // namespace isthmus::bootstrap
