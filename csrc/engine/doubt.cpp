// Whether the device of a rank still works: one that has failed, or that the program has reset, signals nothing more. Its driver is asked by
// the courier and not by whoever waits: the call could wait for the very work that goes on when that thread has opened a gate.
#include <algorithm>

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
  context_->courier(*this);
}

void Member::device_failed(const Status &s) noexcept {
  fail(s.code, formatted("the device of {} has failed: {}", rank_text(rank_), s.text), true);
}

device::PointerInfo Member::find(const void *memory) {
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
  if (const std::unique_lock order(island_mutex_, std::try_to_lock); order.owns_lock() && island_) island_->died();
  device_failed(s);
}

}  // namespace isthmus::engine
