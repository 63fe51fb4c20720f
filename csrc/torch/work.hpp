// TorchWork: what torch holds for one operation. PendingWork: the state of one that did not end inside its call; it outlives the Work
// for as long as the library uses the tensors.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <c10/core/Stream.h>

#include <isthmus/isthmus.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fork.hpp"
#include "stream_place.hpp"
#include "tensors.hpp"

namespace isthmus::torch_face {

inline double seconds(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

class PendingWork : public std::enable_shared_from_this<PendingWork> {
 public:
  // The last reference may go while the library still works: the rest of the PendingWork then lives until the end of that.
  static std::shared_ptr<PendingWork> make();
  ~PendingWork();

  // Before it is submitted, and by one thread.
  void keep(std::vector<at::Tensor> tensors, Staging staging);
  void at_end(std::function<void()> function) { at_end_.push_back(std::move(function)); }  // the program's: run by others
  // torch's own, and quick: it has run when anybody sees that the operation has ended, who may then end the profile that it is for.
  void before_end(std::function<void()> function) { before_end_.push_back(std::move(function)); }

  StreamPlace &place() noexcept { return place_; }  // where it stands; decided before submitted()
  const StreamPlace &place() const noexcept { return place_; }
  // What `later` is given from now on is behind it; throws if it was not submitted. May wait for a message (StreamPlace::begins_behind).
  void order(c10::Stream later) const;
  void check_submitted() const;

  void submitted(isthmus_work_t handle);  // takes the handle; NULL: nothing was to be done
  void watch();                           // from now on the completer settles it as soon as it ends

  // Waits; 0: until the operation's own deadline. Throws the operation's failure, or that the time is over while it still runs.
  void wait(std::chrono::milliseconds timeout);
  bool ended();                // does not block; settles it if it has ended
  bool succeeded();            // ended, and well
  std::exception_ptr error();  // null while it runs and after success
  int source() const;
  std::uint64_t sequence() const;
  float milliseconds();

  // `value` says what the future will hold.
  c10::intrusive_ptr<c10::ivalue::Future> future(at::TypePtr type, std::function<c10::IValue(isthmus_result)> value,
                                                 bool throws);

  // Called by whoever learns first that it ended; later calls wait for the first and do nothing. A thread of the program's releases the
  // tensors itself, as it would any other. The futures are completed by another thread (runner.hpp), soon: those that this call handed on.
  enum class By : std::uint8_t { Program, Completer };
  using Futures = std::vector<c10::intrusive_ptr<c10::ivalue::Future>>;
  Futures settle(isthmus_result result, const std::string &text, By by) noexcept;

 private:
  PendingWork() = default;
  bool lost() const noexcept;   // the parent's, and its end had not been seen at the fork
  void check_not_lost() const;  // throws
  static void retire(PendingWork *operation) noexcept;
  static void on_done(void *context, isthmus_result result, const char *text);

  struct Promise {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::function<c10::IValue(isthmus_result)> value;
    bool throws;
  };
  void fulfil(const Promise &promise) const;

  const ProcessBirth birth_{};
  std::atomic<isthmus_work_t> handle_{nullptr};  // set once, by submitted(); release: before submitted_
  std::atomic<bool> submitted_{false};           // release after handle_
  std::atomic<bool> settled_{false};             // release after result_ and text_
  std::mutex mutex_;                             // guards what follows
  isthmus_result result_ = ISTHMUS_IN_PROGRESS;
  std::string text_;
  bool watched_ = false;
  std::vector<at::Tensor> kept_;
  Staging staging_;
  StreamPlace place_;  // complete before submitted_
  std::vector<std::function<void()>> at_end_, before_end_;
  std::vector<Promise> promises_;
};

class TorchWork final : public c10d::Work {
 public:
  // `title` and `inputs` are for torch's profiler; no title: nothing is recorded.
  TorchWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs,
            std::vector<at::Tensor> outputs);

  void done(std::uint64_t sequence, std::chrono::steady_clock::duration took);  // it ended inside its call
  void follow(std::shared_ptr<PendingWork> operation);                          // it goes on
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
  // The future of an operation on a stream: complete at once for the host, for streams when the operation is.
  c10::intrusive_ptr<c10::ivalue::Future> future_on_stream();

  std::shared_ptr<PendingWork> operation_;  // null: it ended well inside its call
  std::vector<at::Tensor> outputs_;
  std::uint64_t sequence_ = 0;
  float milliseconds_ = 0;
  std::mutex futures_mutex_;  // guards the two futures, which are made on request
  c10::intrusive_ptr<c10::ivalue::Future> future_, future_result_;
};

}  // namespace isthmus::torch_face
