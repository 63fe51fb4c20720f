// TorchWork: torch's object for one operation. PendingWork: the state of an operation that did not end inside its call. The
// PendingWork outlives the TorchWork as long as the library uses the tensors.
//
//   calling thread                       thread of the library                 completer, runner
//   submitted(), watch()
//   wait(): sleeps                       the operation ends: on_done()  ---->  settle(): result, copies back
//   wakes: settle() does nothing more                                          callbacks, hooks, release of tensors
//
// The first thread that calls settle() does the work. The calling thread may be the first.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <c10/core/Stream.h>

#include <isthmus/isthmus.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/lock.hpp"
#include "fork.hpp"
#include "stream_place.hpp"
#include "tensors.hpp"

namespace isthmus::torch_face {

inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

class PendingWork : public std::enable_shared_from_this<PendingWork> {
 public:
  // The last reference may go while the library still works. The PendingWork then lives until the operation ends.
  static std::shared_ptr<PendingWork> make();
  ~PendingWork();

  // These three are called by one thread, before the operation is submitted. That thread needs no lock, so the lock counts as held.
  void keep(std::vector<at::Tensor> tensors, Staging staging);
  // A function of the program's. The runner's threads run the function.
  void at_end(std::function<void()> function) {
    mutex_.counts_as_held();
    at_end_.push_back(std::move(function));
  }
  // A quick function of torch's own. The function has run before any thread sees the operation's end: such a thread may then
  // end the profile into which the function writes.
  void before_end(std::function<void()> function) {
    mutex_.counts_as_held();
    before_end_.push_back(std::move(function));
  }

  StreamPlace &place() noexcept { return place_; }  // where the operation stands; decided before submitted()
  const StreamPlace &place() const noexcept { return place_; }
  // Puts work that `later` is given from now on behind the operation. Throws if the operation was not submitted. May wait
  // for a message (StreamPlace::begins_behind).
  void order(c10::Stream later);
  void check_submitted() const;

  void submitted(isthmus_work_t handle);  // takes the handle; NULL: nothing was to be done
  void watch();                           // from now on the completer settles the operation as soon as it ends

  // Waits for the operation's end, at most for `timeout`; 0: until the operation's own deadline. Throws the operation's
  // failure, or an error that says that the time is over and the operation still runs.
  void wait(std::chrono::milliseconds timeout);
  bool ended();                // whether the operation has ended; does not block, and settles an ended operation
  std::exception_ptr error();  // null while the operation runs, and after success
  int source() const;
  std::uint64_t sequence() const;
  float milliseconds();

  // `value` says what the future will hold.
  c10::intrusive_ptr<c10::ivalue::Future> future(at::TypePtr type, std::function<c10::IValue(isthmus_result)> value,
                                                 bool throws);

  // Called by every thread that learns of the operation's end. The first call does the work. Later calls wait for the first,
  // and do nothing. A thread of the program's releases the tensors itself. The runner completes the futures soon, on another
  // thread.
  enum class By : std::uint8_t { Program, Completer };
  void settle(isthmus_result result, const std::string &text, By by) noexcept;

 private:
  PendingWork() = default;
  // Gives the copies behind an operation that is ordered later to a stream of their own, once. May wait for a message.
  void copy_behind();
  bool lost() const noexcept;   // whether this is a forked child, and the end was not seen before the fork
  void check_not_lost() const;  // throws
  static void retire(PendingWork *operation) noexcept;
  static void on_done(void *context, isthmus_result result, const char *text);

  struct Promise {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::function<c10::IValue(isthmus_result)> value;
    bool throws;
  };
  void fulfil(const Promise &promise);

  const ProcessBirth birth_{};
  std::atomic<isthmus_work_t> handle_{nullptr};  // set once, by submitted(); release: before submitted_
  std::atomic<bool> submitted_{false};           // release after handle_
  std::atomic<bool> settled_{false};             // release after result_ and text_
  isthmus_result result_ = ISTHMUS_IN_PROGRESS;  // set once, by settle(), and read after settled_
  std::string text_;                             // likewise
  Mutex mutex_;                                  // held over the copies of staging_, and over the functions of before_end_
  bool watched_ ISTHMUS_GUARDED_BY(mutex_) = false;
  std::vector<at::Tensor> kept_ ISTHMUS_GUARDED_BY(mutex_);
  Staging staging_ ISTHMUS_GUARDED_BY(mutex_);
  StreamPlace place_;  // complete before submitted_, but for copies that are ordered later: those come under mutex_
  std::vector<std::function<void()>> at_end_ ISTHMUS_GUARDED_BY(mutex_), before_end_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<Promise> promises_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> handed_ ISTHMUS_GUARDED_BY(mutex_);  // the runner completes them
};

class TorchWork final : public c10d::Work {
 public:
  // `title` and `inputs` are for torch's profiler; no title: nothing is recorded.
  TorchWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs,
            std::vector<at::Tensor> outputs);

  void done(std::uint64_t sequence, std::chrono::steady_clock::duration took);  // the operation ended inside its call
  void follow(std::shared_ptr<PendingWork> operation);                          // the operation goes on
  const std::shared_ptr<PendingWork> &operation() const noexcept { return operation_; }

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override;
  void synchronize() override;
  void blockCurrentStream() override;
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;  // milliseconds
  std::uint64_t getSequencenumber() const override;

 private:
  // The future of an operation on a stream. For the host the future is complete at once; for streams, when the operation is.
  c10::intrusive_ptr<c10::ivalue::Future> future_on_stream();

  std::shared_ptr<PendingWork> operation_;  // null: the operation ended well inside its call
  std::vector<at::Tensor> outputs_;
  std::uint64_t sequence_ = 0;
  float milliseconds_ = 0;
  // The futures are made on request.
  Mutex futures_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_ ISTHMUS_GUARDED_BY(futures_mutex_), future_result_
      ISTHMUS_GUARDED_BY(futures_mutex_);
};

}  // namespace isthmus::torch_face
