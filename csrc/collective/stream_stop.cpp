#include "collective/stream_stop.hpp"

#include <chrono>
#include <thread>

#include "base/clock.hpp"
#include "device/abandoned.hpp"

namespace isthmus::collective {
namespace {

// A stream that is stopped again and again, until a mark behind all that the stream holds is reached.
struct Stopping {
  std::atomic<uint32_t> times{0};
  std::atomic<bool> over{false};  // no thread waits for the answer any more
};

// Whether the stream, which another thread stops, has run empty: the mark that is recorded behind the last stop is reached. Both calls may stand
// for as long as a third thread has the driver locked. That thread may wait for the device.
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

// The call that stops a stream needs neither room in the stream's queue nor the driver's lock. So the call frees a thread that waits for these.
// What that thread then gives the stream may wait as well. So the stream is stopped again until the stream has run empty.
Status stop_until_empty(const std::shared_ptr<device::Stream> &stream, device::Runtime *runtime, int device,
                        double seconds) {
  constexpr int64_t kAgain = 100'000'000;
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
      seconds, [=] { return run_empty(*stopping, *stream, *runtime, device); }, nullptr, refused);
  stopping->over.store(true);
  return empty ? *empty : Status{Code::Timeout, ""};
}

}  // namespace

bool StreamStop::wanted(DeviceExecutor &executor, int64_t now, bool alone) noexcept {
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::Done && alone) {
    if (alone_) executor.ending().died();
    else state_.store(State::None, std::memory_order_release);
  }
  if (state == State::Refused || !executor.ending().wants_stop(now)) return false;
  if (state_.load(std::memory_order_acquire) == State::None) {
    alone_ = alone;
    state_.store(State::Asked, std::memory_order_release);
    core_.context->workers().call(core_.port, process::WorkerTask::StopStream);
  }
  return true;
}

void StreamStop::stop(std::shared_ptr<device::Stream> stream) noexcept {
  constexpr double kAnswer = 3;
  if (state_.load(std::memory_order_acquire) != State::Asked) return;
  State found = State::Refused;
  try {
    if (stream) {
      const auto stopped = device::call_within(
          kAnswer + 1,
          [stream = std::move(stream), runtime = core_.device.runtime, device = core_.device.number]() -> Status {
            return stop_until_empty(stream, runtime, device, kAnswer);
          });
      if (stopped && stopped->ok()) found = State::Done;
    }
  } catch (const std::exception &) {}
  state_.store(found, std::memory_order_release);
  core_.wake();
}

}  // namespace isthmus::collective
