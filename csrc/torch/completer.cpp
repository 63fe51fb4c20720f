#include "completer.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <atomic>
#include <chrono>

#include "work.hpp"

namespace isthmus::torch_face {

namespace {

constexpr std::chrono::milliseconds kAtExit{5000};

// Never destroyed: operations may end after static destruction began.
std::atomic<Completer *> the_completer{new Completer};

}  // namespace

Completer &Completer::get() { return *the_completer.load(std::memory_order_acquire); }

void Completer::forked() noexcept { the_completer.store(new Completer, std::memory_order_release); }

void Completer::push(std::shared_ptr<PendingWork> operation, isthmus_result result, std::string text) {
  const Lock lock(mutex_);
  if (stopped_) {
    new std::shared_ptr<PendingWork>(
        std::move(operation));  // kept for good on purpose: its tensors may need the interpreter
    return;
  }
  queue_.push_back({std::move(operation), result, std::move(text)});
  if (!started_) {
    thread_ = std::thread([this] { loop(); });
    ::pthread_setname_np(thread_.native_handle(), "isthmus-torch");
    started_ = true;
  }
  wake_.notify_one();
}

void Completer::stop() {
  std::thread thread;
  {
    const Lock lock(mutex_);
    stopped_ = true;
    thread.swap(thread_);
  }
  wake_.notify_one();
  if (thread.joinable()) thread.join();
  if (const std::size_t left = runner_.stop(kAtExit); left > 0) {
    TORCH_WARN("isthmus: ", left, " callback(s) of futures have not come back within ",
               std::chrono::duration<double>(kAtExit).count(), " s of the end of the program; they are left behind");
  }
}

void Completer::loop() {
  Lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this]() ISTHMUS_REQUIRES(mutex_) { return stopped_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Ended ended = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    ended.operation->settle(ended.result, ended.text, PendingWork::By::Completer);
    ended.operation.reset();
    lock.lock();
  }
}

}  // namespace isthmus::torch_face
