// One thread a process for what follows the end of an operation: copies back, futures with their callbacks (which may be Python),
// hooks, and the release of tensors (which may be Python objects). None of that may run on the thread that moves the data.
#pragma once

#include <isthmus/isthmus.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace isthmus::torch_face {

class Operation;

class Completer {
 public:
  static Completer &get();
  static void forked() noexcept;  // in a forked child: a new one, for the thread of the old one does not exist there

  // Hands over an operation that ended. After stop() it is left alone for good: no interpreter is there to complete it for.
  void push(std::shared_ptr<Operation> operation, isthmus_result result, std::string text);

  // Completes what was handed over, then ends the thread. Called once, while the interpreter is alive and the GIL is released.
  void stop();

 private:
  struct Ended {
    std::shared_ptr<Operation> operation;
    isthmus_result result;
    std::string text;
  };
  void loop();

  std::mutex mutex_;  // guards everything below
  std::condition_variable wake_;
  std::deque<Ended> queue_;
  bool started_ = false, stopped_ = false;
  std::thread thread_;
};

}  // namespace isthmus::torch_face
