// The completer is one thread of the process. It does what follows an operation's end: it makes the copies back, and tells
// those who ask that the operation has ended. The thread that moves the data may do neither.
//
// The program's own code goes on to the runner (runner.hpp): callbacks of futures, hooks, the release of tensors. So the end
// of an operation waits for no code of the program.
//
//   thread of the library       completer                     runner
//   the operation ends
//   push()               ---->  copies back, settles
//                               hands the program's code ---> callbacks, hooks, release of tensors
#pragma once

#include <isthmus/isthmus.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "base/lock.hpp"
#include "runner.hpp"

namespace isthmus::torch_face {

class PendingWork;

class Completer {
 public:
  static Completer &get();
  static void forked() noexcept;  // called in a forked child, where the thread does not exist: makes a new completer

  // Hands over an operation that has ended. After stop() there is no interpreter, and the operation is left alone for good.
  void push(std::shared_ptr<PendingWork> operation, isthmus_result result, std::string text);

  // Completes the operations that were handed over, and ends the thread. Waits a few seconds for callbacks that have not
  // come back. Called once, while the interpreter is alive and the GIL is released.
  void stop();

  Runner &runner() noexcept { return runner_; }

 private:
  struct Ended {
    std::shared_ptr<PendingWork> operation;
    isthmus_result result;
    std::string text;
  };
  void loop();

  Mutex mutex_;  // held while the thread is started
  Condition wake_;
  std::deque<Ended> queue_ ISTHMUS_GUARDED_BY(mutex_);
  bool started_ ISTHMUS_GUARDED_BY(mutex_) = false, stopped_ ISTHMUS_GUARDED_BY(mutex_) = false;
  std::thread thread_ ISTHMUS_GUARDED_BY(mutex_);
  Runner runner_;  // has a lock of its own
};

}  // namespace isthmus::torch_face
