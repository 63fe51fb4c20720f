// The progress thread drives the operations for which no caller waits. A rank with such operations is active, and listed.
//
// A caller that waits drives its own rank and the links, so the progress thread leaves that rank alone. Without a listed rank the thread
// sleeps on a bell of its own. With one, and nothing to do, the thread sleeps for sockets and the doorbell (Links::sleep).
//
// The thread takes a rank without work out of the list while a caller may give the rank work:
//
//   caller                           progress thread
//                                    has_work(): no
//                                    clears `active`
//   queues an operation
//   activate(): `active` was clear   locks the list, asks has_work() again
//   sets it, waits for the lock        yes: sets `active`, the rank stays
//                                      no, and `active` is set: the rank stays, the caller lists it anyhow
//                                      no, and `active` is clear: takes the rank out
//   lists the rank if it is out
//
// The thread runs the program's callbacks that are due. A callback may wait; then another thread takes the place of this one (stand_in), and
// this one ends when the callback has returned. Likewise where a callback ends the thread itself (pthread_exit, pthread_cancel), as an interpreter
// does that ends.
//
// A caller that finds `active` set does not list the rank: the thread will ask has_work() after that and see the operation.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "base/doorbell.hpp"
#include "base/lock.hpp"
#include "link/arena.hpp"
#include "process/links.hpp"
#include "process/local_rank.hpp"

namespace isthmus::process {

class Progress {
 public:
  Progress(link::Arena &arena, Links &links, int64_t spin_ns) noexcept : arena_(arena), links_(links), spin_ns_(spin_ns) {}
  void begin();         // the thread. Throws std::system_error
  void end() noexcept;  // and waits for it, and for those that it has replaced

  void activate(LocalRank &rank);  // the rank has operations for which perhaps no caller waits. Any thread
  void forget(const std::shared_ptr<LocalRank> &rank);
  void call_soon(void (*calls)()) noexcept;  // on the progress thread, without a lock; always the same. Any thread
  // This thread is about to wait in a call. Where this is the progress thread, in a callback of the program's, another thread takes its
  // place: what the callback waits for may be what the progress thread brings about. Any thread.
  void stand_in() noexcept;

 private:
  struct Listed {  // the thread's copy of the list
    std::vector<std::shared_ptr<LocalRank>> ranks;
    uint64_t version = ~uint64_t{0};
  };
  struct Round {  // of driving all listed ranks once
    bool work = false, waited_for = true, moved = false;
  };
  struct ProgressThread {
    std::thread thread;
    std::atomic<bool> over{false};
  };
  void begin_thread() ISTHMUS_REQUIRES(threads_mutex_);
  void loop();
  void make_calls();
  void look_at_list(Listed &listed);
  bool keep_listed(const std::shared_ptr<LocalRank> &rank);  // false: taken out, as the rank has no work
  Round drive(const Listed &listed);
  void sleep_without_work(Listed &listed);
  void sleep_with_work(const Listed &listed, int64_t idle_ns);

  link::Arena &arena_;
  Links &links_;
  const int64_t spin_ns_;
  Mutex mutex_;
  std::vector<std::shared_ptr<LocalRank>> active_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<uint64_t> version_{0};        // of the list
  Doorbell bell_;                           // where the thread sleeps while no rank is listed, or a caller drives
  std::atomic<void (*)()> calls_{nullptr};  // of call_soon()
  std::atomic<bool> due_{false};
  std::atomic<bool> stop_{false};
  Mutex threads_mutex_;
  std::list<ProgressThread> threads_
      ISTHMUS_GUARDED_BY(threads_mutex_);  // the last is the progress thread, the others have been
};

}  // namespace isthmus::process
