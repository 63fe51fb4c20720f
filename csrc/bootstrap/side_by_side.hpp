// Waits of a caller that several threads wait out side by side: a dialogue with each of many processes, for example.
//
//   the calling thread   SideBySide of tasks 0..5   take_part(): 0, 3      one(6)   await(): looks until the others have ended
//   a thread of ours                                  1, 4
//   a thread of ours                                  2, 5
//
// Each of the threads takes the next task that none has begun. An error of one task is that task's alone. What `look` throws, or an interrupt
// (Error(Interrupted)) in any task or in await(), ends all: no task begins any more, and those that are under way hear it at their next look, or in
// a wait of net/wait.hpp.
//
// Thread rules: one thread makes it, calls it and ends it. `look` is asked by that thread alone. The tasks run on all.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "bootstrap/mesh.hpp"

namespace isthmus::bootstrap {

class SideBySide {
 public:
  // One task, by its number. While it waits it asks its look every 20 ms, or waits by net/wait.hpp, and lets pass what those throw.
  using Task = std::function<void(size_t, const Look &)>;
  // Begins with `tasks`, on at most `most` threads, this one included; where no thread can be begun, on those that there are.
  SideBySide(std::vector<size_t> tasks, size_t most, Task task, const Look &look);
  ~SideBySide();  // waits for the tasks that are under way
  SideBySide(const SideBySide &) = delete;
  SideBySide &operator=(const SideBySide &) = delete;

  void take_part() noexcept;       // until no task is left that nobody has begun
  void one(size_t task) noexcept;  // a task that is not among the others, on this thread
  void await();                    // the ends of all. Throws what has ended them
  // Behind await(): the tasks that have failed, and how.
  struct Failed {
    size_t task;
    std::exception_ptr why;
  };
  std::vector<Failed> take_failed();

 private:
  void serve() noexcept;
  void work(const Look &look) noexcept;
  void run(size_t task, const Look &look) noexcept;
  void ask(const Look &look);
  void end_all(std::exception_ptr why) noexcept;
  void check_goes_on();
  void join();

  const std::vector<size_t> tasks_;
  const Task task_;
  const Look look_;
  std::atomic<size_t> next_{0};
  std::vector<std::thread> threads_;
  Mutex mutex_;
  Condition changed_;
  size_t ended_ ISTHMUS_GUARDED_BY(mutex_) = 0;         // of the threads
  std::exception_ptr over_ ISTHMUS_GUARDED_BY(mutex_);  // why nobody goes on
  std::vector<Failed> failed_ ISTHMUS_GUARDED_BY(mutex_);
};

}  // namespace isthmus::bootstrap
