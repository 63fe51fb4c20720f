// One thread a process for what follows the end of an operation: the copies back, and that whoever asks is told of the end. That may not
// run on the thread that moves the data. What is the program's, futures with their callbacks, hooks and the release of tensors, it hands
// on (runner.hpp): the end of an operation waits for nobody's code.
#pragma once

#include <isthmus/isthmus.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runner.hpp"

namespace isthmus::torch_face {

class PendingWork;

class Completer {
 public:
  static Completer &get();
  static void forked() noexcept;  // in a forked child: a new one, for the thread of the old one does not exist there

  // Hands over an operation that ended. After stop() it is left alone for good: no interpreter is there to complete it for.
  void push(std::shared_ptr<PendingWork> operation, isthmus_result result, std::string text);

  // Completes what was handed over, then ends the thread; waits a few seconds for callbacks that have not come back. Called once, while the
  // interpreter is alive and the GIL is released.
  void stop();

  Runner &runner() noexcept { return runner_; }

 private:
  struct Ended {
    std::shared_ptr<PendingWork> operation;
    isthmus_result result;
    std::string text;
  };
  void loop();

  std::mutex mutex_;  // guards everything below
  std::condition_variable wake_;
  std::deque<Ended> queue_;
  bool started_ = false, stopped_ = false;
  std::thread thread_;
  Runner runner_;  // has a lock of its own
};

}  // namespace isthmus::torch_face
