// Runs the program's code when an operation has ended: callbacks of futures, completion hooks, and the release of tensors,
// whose finalizers may be Python. Such code may never come back: a callback may wait for another operation's future, and the
// callback of that future for a third operation. So no task waits here for another task's code.
//
// One thread leads: the leader runs tasks in the order of push(). While the leader is inside a task, another thread stands
// by:
//
//   leader      task 1 ── task 2 ───────────(does not come back)
//   stand-by      .          .    moment │ leads: task 3 ── task 4 ...
//   new thread                           │ stands by
//
// The stand-by takes the lead where tasks are waiting and the leader has been inside a task for longer than a moment. The
// moment grows with the number of threads that have not come back. So a program that holds the interpreter's lock for long
// does not make a thread for each task.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "base/lock.hpp"

namespace isthmus::torch_face {

class Runner {
 public:
  using Task = std::function<void()>;  // throws nothing

  // Hands over a task. False after stop(): the task is kept for good and never run, because the task may need the
  // interpreter.
  bool push(Task task);

  // Runs the tasks that were pushed, for at most `patience`. Returns how many tasks have not come back or not begun by then.
  // Those tasks are left behind.
  std::size_t stop(std::chrono::milliseconds patience);

 private:
  using Clock = std::chrono::steady_clock;
  void loop();
  void lead() ISTHMUS_REQUIRES(mutex_);      // the lock is not held while a task runs
  void stand_by() ISTHMUS_REQUIRES(mutex_);  // makes a thread that can take the lead, unless there is such a thread
  Clock::duration moment() const ISTHMUS_REQUIRES(mutex_);

  Mutex mutex_;  // held while a thread is started
  Condition wake_, over_;
  std::deque<Task> queue_ ISTHMUS_GUARDED_BY(mutex_);
  std::size_t inside_ ISTHMUS_GUARDED_BY(mutex_) = 0;   // tasks that have begun and not come back
  std::size_t idle_ ISTHMUS_GUARDED_BY(mutex_) = 0;     // threads that run none
  std::uint64_t leads_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // changes of the lead: who has the last number leads
  bool led_ ISTHMUS_GUARDED_BY(mutex_) = false;         // somebody leads
  bool watched_ ISTHMUS_GUARDED_BY(mutex_) = false;     // and somebody watches for how long
  Clock::time_point since_ ISTHMUS_GUARDED_BY(mutex_);  // when the leader's task began
  bool stopped_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::torch_face
