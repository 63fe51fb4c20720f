// Whether the device of a rank still works: one that has failed, or that the program has reset, signals nothing more. Its driver is asked by
// the device worker and not by whoever waits: the call could wait for the very work that goes on when that thread has opened a gate. And what is done
// about threads that do not come back from the calls in which they give it work.
#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {

void Member::doubt_device(int64_t now) noexcept {
  constexpr int64_t kDoubt = 100'000'000;
  int64_t asked = device_asked_ns_.load(std::memory_order_relaxed);
  if (!runtime_ || device_silent_.load(std::memory_order_relaxed) || now - asked < kDoubt ||
      !device_asked_ns_.compare_exchange_strong(asked, now, std::memory_order_relaxed))
    return;
  if (asked == 0) return;  // 100 ms after the first doubt
  device_doubted_.store(true, std::memory_order_release);
  context_->workers().call(*this);
}

void Member::device_failed(const Status &s) noexcept {
  fail(s.code, formatted("the device of {} has failed: {}", rank_text(rank_), s.text), true);
}

// Who asks it of a driver that is known to hang would be stuck as well.
void Member::refuse_stuck() const {
  if (!runtime_ || !failed() || !runtime_->stuck(device_)) return;
  const Status why = failure();
  throw Error(why.code, why.text);
}

device::PointerInfo Member::find(const void *memory) {
  refuse_stuck();
  try {
    const device::PointerInfo found = runtime_->find(memory);
    if (found.where != device::Where::Unknown || !memory || failed()) return found;
    const auto stream = device_streams_.first.lock();
    const Status s = stream ? stream->status() : Status{};
    if (s.ok()) return found;
    device_failed(s);
  } catch (const Error &e) { device_failed({e.code(), e.text()}); }
  const Status why = failure();
  throw Error(why.code, why.text);
}

namespace {

// A stream that is stopped again and again, until something behind all that it holds is reached.
struct Stopping {
  std::atomic<uint32_t> times{0};
  std::atomic<bool> over{false};  // nobody waits for the answer any more
};

// Whether the stream, stopped by another thread, has run empty: what is recorded behind the last stop is reached. Both calls may stand for as
// long as another thread has the driver locked, and that thread may wait for the device.
Status run_empty(const Stopping &stopping, device::Stream &stream, device::Runtime &runtime, int device) {
  std::unique_ptr<device::Event> behind;
  while (!stopping.over.load()) {
    const uint32_t times = stopping.times.load();
    bool recorded = false;
    try {
      if (!behind) behind = runtime.make_event(device);
      behind->record(stream);
      recorded = true;
    } catch (const Error &) {}  // a call that fails once may be this one
    for (; stopping.times.load() == times && !stopping.over.load();
         std::this_thread::sleep_for(std::chrono::microseconds(100)))
      if (recorded && behind->reached()) return {};
  }
  (void)behind.release();  // the stream still has it
  return {Code::Timeout, ""};
}

}  // namespace

// The call that stops a stream needs neither room in its queue nor the driver's lock, so it frees who waits for them. What that thread gives
// the stream then may wait as well, so the stream is stopped again until it has run empty.
void Member::stop_stream() noexcept {
  constexpr double kAnswer = 3;
  constexpr int64_t kAgain = 100'000'000;
  if (stop_.load(std::memory_order_acquire) != Stop::Asked) return;
  Stop found = Stop::Refused;
  try {
    const auto stream = device_streams_.first.lock();
    if (stream) {
      const auto stopped = device::call_within(kAnswer + 1, [stream, runtime = runtime_, device = device_]() -> Status {
        const auto stopping = std::make_shared<Stopping>();
        int64_t last = 0;
        const auto refused = [&] {
          if (now_ns() - last < kAgain) return false;
          last = now_ns();
          if (!stream->cut()) return true;
          stopping->times.fetch_add(1);
          return false;
        };
        if (refused()) return {Code::Unsupported, ""};
        const auto empty = device::call_within(
            kAnswer, [=] { return run_empty(*stopping, *stream, *runtime, device); }, nullptr, refused);
        stopping->over.store(true);
        return empty ? *empty : Status{Code::Timeout, ""};
      });
      if (stopped && stopped->ok()) found = Stop::Done;
    }
  } catch (const std::exception &) {}
  stop_.store(found, std::memory_order_release);
  context_->wake();
}

void Member::look_at_device() noexcept {
  constexpr double kAnswer = 2;
  if (!device_doubted_.exchange(false, std::memory_order_acq_rel) || device_silent_.load(std::memory_order_relaxed)) return;
  Status s;
  for (const auto *mine : {&device_streams_.first, &device_streams_.second}) {
    const auto stream = mine->lock();
    if (!stream || !s.ok()) continue;
    // The driver may be locked by whoever waits for the device, for instance to free memory, and that may hang.
    try {
      const auto answer = device::call_within(kAnswer, [stream] { return stream->status(); });
      if (!answer) return device_silent_.store(true, std::memory_order_relaxed);
      s = *answer;
    } catch (const std::exception &) { return; }  // no memory: it is asked again
  }
  if (s.ok()) return;
  // Whoever submits may stand at a gate with the mutex, until he hears of the failure. Then we are asked again.
  if (const SubmitLock::Held order = island_lock_.try_take(); order && executor_) executor_->died();
  device_failed(s);
}

SubmitLock::Held Member::lock_for(SubmitLock &lock, const Operation *op) noexcept {
  return lock.take(op, [&] {
    if (const int64_t now = now_ns(); !failed() && op && now >= op->deadline_ns)
      fail_at(*op, Code::Timeout,
              formatted(" did not finish within {:g} s: another thread of {} is before it{}{}", op->call.timeout,
                        rank_text(rank_), inside_text().empty() ? "" : ", in ", inside_text()),
              true);
    return failed();
  });
}

bool Member::leave_behind(SubmitLock &lock) noexcept {
  return lock.leave_behind(now_ns(), formatted("communicator '{}', rank {}", name_, rank_), runtime_, device_);
}

bool Member::only_stuck() const noexcept {
  if (!island_lock_.left() && !copier_lock_.left()) return false;
  if (!queue_.empty()) return false;
  const Lock lock(match_lock_);
  return std::all_of(std::begin(lists_), std::end(lists_), [](const OperationList *list) { return list->head == nullptr; });
}

std::string Member::inside_text() const {
  for (const SubmitLock *lock : {&island_lock_, &copier_lock_})
    if (const std::string call = lock->call(); !call.empty())
      return formatted("{}{}, which has not come back", call,
                       runtime_ ? formatted(" on {}:{}", runtime_->vendor(), device_) : "");
  return {};
}

// One that is in none of the lists yet, because the thread that begins it is held up before.
void Member::late_submission(int64_t now) noexcept {
  std::string late;
  for (const SubmitLock *lock : {&island_lock_, &copier_lock_})
    lock->if_late(now, [&](const Operation &op) {
      late = formatted("{} did not finish within {:g} s: {} is in {}", describe(op), op.call.timeout, rank_text(rank_),
                       inside_text());
    });
  if (late.empty()) return;
  Failure why{{Code::Timeout, late}};
  why.late = true;
  fail(std::move(why), true);
}

// After a failure the operation may be over, and another's.
void Member::not_submitted(const Operation &op, const Error &e) noexcept {
  if (!failed()) fail_at(op, e.code(), ": " + e.text());
}

}  // namespace isthmus::engine
