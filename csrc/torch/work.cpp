#include "work.hpp"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <thread>

#include "completer.hpp"
#include "errors.hpp"
#include "interpreter.hpp"

namespace isthmus::torch_face {

namespace {

using Clock = std::chrono::steady_clock;
constexpr Clock::duration kMostFutures = std::chrono::seconds(5);
constexpr Clock::duration kShortest = std::chrono::microseconds(20), kLongest = std::chrono::milliseconds(1);
constexpr Clock::duration kLook = std::chrono::milliseconds(50);

[[noreturn]] void not_submitted() {
  raise(ISTHMUS_ERR_ARGUMENT,
        "this operation was recorded in a coalescing block that has not ended; wait on the work of the block "
        "(inside it: isend and irecv instead of send and recv)");
}

c10d::WorkResult outcome(isthmus_result result) {
  switch (result) {
    case ISTHMUS_OK: return c10d::WorkResult::SUCCESS;
    case ISTHMUS_ERR_TIMEOUT: return c10d::WorkResult::TIMEOUT;
    default: return c10d::WorkResult::COMM_ERROR;
  }
}

}  // namespace

std::shared_ptr<PendingWork> PendingWork::make() { return {new PendingWork, retire}; }

PendingWork::~PendingWork() {
  place_.end();
  if (isthmus_work_t handle = handle_.load(std::memory_order_relaxed)) isthmus_work_release(handle);
}

void PendingWork::retire(PendingWork *operation) noexcept {
  if (!operation->birth_.here()) return;  // the operation's event and handle are the parent's, and stay as they are
  isthmus_work_t handle = operation->handle_.load(std::memory_order_relaxed);
  if (!handle || operation->settled_.load(std::memory_order_acquire) || isthmus_work_test(handle) != ISTHMUS_IN_PROGRESS) {
    delete operation;
    return;
  }
  // The operation still runs, and nobody holds the PendingWork. The callback owns it now. Where the library takes no
  // callback, the tensors stay alive for good.
  static_cast<void>(isthmus_work_on_done(
      handle,
      [](void *context, isthmus_result result, const char *text) {
        Completer::get().push(std::shared_ptr<PendingWork>(static_cast<PendingWork *>(context)), result, text ? text : "");
      },
      operation));
}

void PendingWork::keep(std::vector<at::Tensor> tensors, Staging staging) {
  mutex_.counts_as_held();
  std::move(tensors.begin(), tensors.end(), std::back_inserter(kept_));
  staging_.absorb(std::move(staging));
}

void PendingWork::check_submitted() const {
  check_not_lost();
  if (!submitted_.load(std::memory_order_acquire)) not_submitted();
}

void PendingWork::copy_behind() {
  if (!place_.ordered_later()) return;
  const interpreter::WithoutGil without_gil;
  {
    const Lock lock(mutex_);
    if (place_.finished()) return;
  }
  // Outside the lock: a signal's handler may run in the call, and look at this operation.
  const c10::Stream aside = place_.aside();
  check(isthmus_work_order(handle_.load(std::memory_order_relaxed), aside.native_handle()));
  const Lock lock(mutex_);
  if (!place_.finished()) place_.finish_on(aside, staging_);
}

void PendingWork::order(c10::Stream later) {
  check_submitted();
  if (place_.has_copies()) {
    copy_behind();
    interpreter::raise_if_interrupted();
    place_.order(later);
  } else if (place_.ordered_later()) {
    const interpreter::WithoutGil without_gil;  // the call may wait for the message
    const isthmus_result result = isthmus_work_order(handle_.load(std::memory_order_relaxed), later.native_handle());
    interpreter::raise_if_interrupted();
    check(result);
  } else {
    place_.order(later);
  }
}

void PendingWork::submitted(isthmus_work_t handle) {
  mutex_.counts_as_held();  // it is not submitted yet, so one thread has it
  handle_.store(handle, std::memory_order_relaxed);
  place_.submitted(kept_, staging_);
  const bool has_an_end = staging_.has_copies() || place_.has_copies() || !at_end_.empty() || !before_end_.empty();
  submitted_.store(true, std::memory_order_release);  // from here on another thread may settle it
  if (!handle) settle(ISTHMUS_OK, "", By::Program);
  else if (has_an_end) watch();
}

void PendingWork::watch() {
  {
    const Lock lock(mutex_);
    if (watched_ || settled_.load(std::memory_order_relaxed)) return;
    watched_ = true;
  }
  // Outside the lock: the callback may run at once, on this thread.
  auto *self = new std::shared_ptr<PendingWork>(shared_from_this());
  const isthmus_result result = isthmus_work_on_done(handle_.load(std::memory_order_relaxed), on_done, self);
  if (result != ISTHMUS_OK) {
    delete self;
    check(result);
  }
}

void PendingWork::on_done(void *context, isthmus_result result, const char *text) {
  auto *self = static_cast<std::shared_ptr<PendingWork> *>(context);
  Completer::get().push(std::move(*self), result, text ? text : "");
  delete self;
}

void PendingWork::settle(isthmus_result result, const std::string &text, By by) noexcept {
  // The library has ended its part, and the copies into the user's tensors stand behind it.
  if (place_.has_copies() && result == ISTHMUS_OK) {
    try {
      copy_behind();
      place_.wait_for_copies();
    } catch (const std::exception &e) { TORCH_WARN("isthmus: the copies behind an operation failed: ", e.what()); }
  }
  Runner &runner = Completer::get().runner();
  std::vector<at::Tensor> kept;  // released here, not when the TorchWork goes
  {
    const Lock lock(mutex_);
    if (settled_.load(std::memory_order_relaxed)) return;
    result_ = result;
    text_ = text;
    if (result == ISTHMUS_OK) {
      try {
        staging_.finish();
      } catch (const std::exception &e) {
        result_ = ISTHMUS_ERR_INTERNAL;
        text_ = std::string("copying the result into a non-contiguous tensor failed: ") + e.what();
      }
    }
    for (const auto &function : std::exchange(before_end_, {})) {
      try {
        function();
      } catch (const std::exception &e) { TORCH_WARN("isthmus: ending a profiler's record failed: ", e.what()); }
    }
    if (result_ != ISTHMUS_OK && place_.ordered_later() && place_.finished()) {
      // Nobody waits for the copies, which may still be on their stream: their memory is kept for good.
      new Staging(std::move(staging_));
      new std::vector<at::Tensor>(std::move(kept_));
      kept_.clear();
    }
    // What the runner runs is the program's code, which may wait for the end of other operations, or never come back.
    for (auto &function : std::exchange(at_end_, {}))
      runner.push([function = std::move(function)] {
        try {
          function();
        } catch (const std::exception &e) { TORCH_WARN("isthmus: a completion hook failed: ", e.what()); }
      });
    for (const Promise &promise : std::exchange(promises_, {}))
      if (runner.push([self = shared_from_this(), promise] { self->fulfil(promise); })) handed_.push_back(promise.future);
    settled_.store(true, std::memory_order_release);
    kept.swap(kept_);
  }
  if (by == By::Completer && !kept.empty()) runner.push([tensors = std::move(kept)]() mutable { tensors.clear(); });
}

void PendingWork::fulfil(const Promise &promise) {
  try {
    if (result_ != ISTHMUS_OK && promise.throws) promise.future->setError(failure(result_, text_));
    else promise.future->markCompleted(promise.value(result_));
  } catch (const std::exception &e) { TORCH_WARN("isthmus: a callback of a future failed: ", e.what()); }
  const Lock lock(mutex_);
  std::erase(handed_, promise.future);
}

// Another thread of the parent may have held its lock at the fork: it is read here, and no more.
bool PendingWork::lost() const noexcept { return !birth_.here() && !settled_.load(std::memory_order_acquire); }

void PendingWork::check_not_lost() const {
  if (lost()) {
    raise(ISTHMUS_ERR_FORKED,
          "this operation belongs to the parent process, and a forked child never sees its end; wait in the parent");
  }
}

bool PendingWork::ended() {
  if (settled_.load(std::memory_order_acquire) || lost()) return true;
  if (!submitted_.load(std::memory_order_acquire)) return false;
  const isthmus_result result = isthmus_work_test(handle_.load(std::memory_order_relaxed));
  if (result == ISTHMUS_IN_PROGRESS) return false;
  if (place_.has_copies() && result == ISTHMUS_OK) {
    copy_behind();
    if (!place_.copied()) return false;
  }
  settle(result, result == ISTHMUS_OK ? "" : isthmus_last_error(), By::Program);
  return true;
}

void PendingWork::wait(std::chrono::milliseconds timeout) {
  check_not_lost();
  if (!settled_.load(std::memory_order_acquire)) {
    if (!submitted_.load(std::memory_order_acquire)) not_submitted();
    isthmus_work_t handle = handle_.load(std::memory_order_relaxed);
    isthmus_result waited = ISTHMUS_OK;
    {
      const interpreter::WithoutGil without_gil;
      waited = isthmus_work_wait(handle, timeout > kNoTimeout ? seconds(timeout) : 0);
      const std::string said = waited == ISTHMUS_OK ? "" : isthmus_last_error();
      // The wait may have ended for a reason of its own, and the operation since then.
      const isthmus_result result = waited == ISTHMUS_OK ? waited : isthmus_work_test(handle);
      if (result == ISTHMUS_IN_PROGRESS && waited == ISTHMUS_ERR_TIMEOUT) {
        interpreter::raise_if_interrupted();
        raise(waited, c10::str("wait(timeout=", seconds(timeout), " s) is over and the operation still runs: ", said));
      }
      if (result == ISTHMUS_IN_PROGRESS && waited != ISTHMUS_ERR_INTERRUPTED) raise(waited, said);
      if (result != ISTHMUS_IN_PROGRESS) {
        const std::string text = result == ISTHMUS_OK ? "" : isthmus_last_error();
        settle(result, text, By::Program);
      }
    }
    interpreter::raise_if_interrupted();
    if (waited == ISTHMUS_ERR_INTERRUPTED) interpreter::raise_interrupt();
  }
  // Who has waited finds the futures complete that were taken before. Behind other code of the program's that may take a while.
  if (birth_.here()) {
    const interpreter::WithoutGil without_gil;
    const Clock::duration limit = timeout > kNoTimeout && timeout < kMostFutures ? Clock::duration(timeout) : kMostFutures;
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> handed;
    {
      const Lock lock(mutex_);
      handed = handed_;
    }
    const Clock::time_point begin = Clock::now(), end = begin + limit;
    Clock::time_point looked = begin;
    for (const auto &future : handed)
      for (auto now = begin; !future->completed() && now < end; now = Clock::now()) {
        std::this_thread::sleep_for(std::clamp<Clock::duration>((now - begin) / 10, kShortest, kLongest));
        if (now - looked < kLook) continue;
        looked = now;
        if (interpreter::interrupted()) interpreter::raise_interrupt();
      }
  }
  if (std::exception_ptr failed = error()) std::rethrow_exception(failed);
}

std::exception_ptr PendingWork::error() {
  try {
    check_not_lost();
  } catch (...) { return std::current_exception(); }
  if (!ended() || result_ == ISTHMUS_OK) return nullptr;
  return failure(result_, text_);
}

int PendingWork::source() const {
  isthmus_work_t handle = handle_.load(std::memory_order_relaxed);
  return handle ? isthmus_work_source(handle) : -1;
}

std::uint64_t PendingWork::sequence() const {
  isthmus_work_t handle = handle_.load(std::memory_order_relaxed);
  return handle ? isthmus_work_sequence(handle) : 0;
}

float PendingWork::milliseconds() {
  isthmus_work_t handle = handle_.load(std::memory_order_relaxed);
  return handle ? static_cast<float>(isthmus_work_duration(handle) * 1e3) : 0;
}

c10::intrusive_ptr<c10::ivalue::Future> PendingWork::future(at::TypePtr type,
                                                            std::function<c10::IValue(isthmus_result)> value, bool throws) {
  check_not_lost();
  if (!submitted_.load(std::memory_order_acquire)) not_submitted();
  Promise promise{c10::make_intrusive<c10::ivalue::Future>(std::move(type)), std::move(value), throws};
  const auto future = promise.future;
  ended();
  {
    const Lock lock(mutex_);
    if (!settled_.load(std::memory_order_relaxed)) {
      promises_.push_back(std::move(promise));
      promise.future.reset();  // NOLINT(bugprone-use-after-move): its place
    }
  }
  if (promise.future) fulfil(promise);
  else watch();
  return future;
}

TorchWork::TorchWork(int rank, c10d::OpType type, const char *title, const std::vector<at::Tensor> &inputs,
                     std::vector<at::Tensor> outputs)
    : c10d::Work(rank, type, title, title ? std::make_optional(inputs) : std::nullopt), outputs_(std::move(outputs)) {}

void TorchWork::done(std::uint64_t sequence, std::chrono::steady_clock::duration took) {
  sequence_ = sequence;
  milliseconds_ = std::chrono::duration<float, std::milli>(took).count();
  if (recordFunctionEndCallback_) finish();  // the profiler's event ends here
}

void TorchWork::follow(std::shared_ptr<PendingWork> operation) {
  if (recordFunctionEndCallback_) operation->before_end(std::exchange(recordFunctionEndCallback_, nullptr));
  operation_ = std::move(operation);
}

bool TorchWork::isCompleted() { return !operation_ || operation_->ended(); }
bool TorchWork::isSuccess() const { return !operation_ || (operation_->ended() && !operation_->error()); }
std::exception_ptr TorchWork::exception() const { return operation_ ? operation_->error() : nullptr; }

// torch asks after wait(), which on a device has waited for nothing. The sender is known only when the message has come.
int TorchWork::sourceRank() const {
  if (!operation_) return -1;
  if (operation_->place().stream()) operation_->wait(kNoTimeout);
  return operation_->source();
}
std::uint64_t TorchWork::getSequencenumber() const { return operation_ ? operation_->sequence() : sequence_; }
float TorchWork::getDuration() const { return operation_ ? operation_->milliseconds() : milliseconds_; }

std::vector<at::Tensor> TorchWork::result() {
  TORCH_CHECK((operation_ && operation_->place().stream()) || isCompleted(),
              "the result of an isthmus operation was asked for before its end; call wait() first");
  return outputs_;
}

// Host tensors: what is complete is visible.
void TorchWork::synchronize() {
  if (!operation_ || !operation_->place().stream()) return;
  operation_->check_submitted();
  const c10::impl::VirtualGuardImpl device(operation_->place().stream()->device_type());
  operation_->order(device.getStream(operation_->place().stream()->device()));
}

void TorchWork::blockCurrentStream() {
  if (operation_ && operation_->place().stream()) synchronize();
  else c10d::Work::blockCurrentStream();
}

// For an operation on a device the caller's stream waits. The thread waits only where it gave a time, or wants to know of a
// failure.
bool TorchWork::wait(std::chrono::milliseconds timeout) {
  if (!operation_) return true;
  if (!operation_->place().stream() || timeout > kNoTimeout) operation_->wait(timeout);
  else if (const std::exception_ptr failed = operation_->error()) std::rethrow_exception(failed);
  synchronize();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::future_on_stream() {
  operation_->check_submitted();
  const c10::Stream stream = *operation_->place().stream();
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                         std::vector<c10::Device>{stream.device()});
  if (const std::exception_ptr failed = operation_->error()) {
    future->setError(failed);
    return future;
  }
  const bool later = operation_->place().ordered_later();
  // Another stream of torch's for each: what comes behind one operation is not to wait for others, and the program's streams go on.
  const c10::Stream end =
      later ? c10::impl::VirtualGuardImpl(stream.device_type()).getStreamFromGlobalPool(stream.device(), true) : stream;
  if (later) operation_->order(end);
  const c10::StreamGuard guard(end);  // completion is what this stream has come to
  future->markCompleted(c10::IValue(outputs_), operation_->place().storages());
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  const interpreter::WithoutGil without_gil;
  const Lock lock(futures_mutex_);
  if (!future_) {
    const auto type = c10::ListType::create(c10::TensorType::get());
    if (operation_ && operation_->place().stream()) {
      future_ = future_on_stream();
    } else if (operation_) {
      future_ = operation_->future(
          type, [outputs = outputs_](isthmus_result) { return c10::IValue(outputs); }, true);
    } else {
      future_ = c10::make_intrusive<c10::ivalue::Future>(type);
      future_->markCompleted(c10::IValue(outputs_));
    }
  }
  return future_;
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() {
  const interpreter::WithoutGil without_gil;
  const Lock lock(futures_mutex_);
  if (!future_result_) {
    const auto value = [](isthmus_result result) { return c10::IValue(static_cast<std::int64_t>(outcome(result))); };
    if (operation_) {
      future_result_ = operation_->future(c10::IntType::get(), value, false);
    } else {
      future_result_ = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
      future_result_->markCompleted(value(ISTHMUS_OK));
    }
  }
  return future_result_;
}

}  // namespace isthmus::torch_face
