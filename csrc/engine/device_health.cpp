#include "engine/device_health.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "device/abandoned.hpp"

namespace isthmus::engine {

void DeviceHealth::note(uint64_t moved, bool waits_for_device, int64_t now) noexcept {
  if (moved != moved_) {
    moved_ = moved;
    asked_ns_.store(now, std::memory_order_relaxed);
  } else if (waits_for_device) {
    doubt(now);
  }
}

void DeviceHealth::doubt(int64_t now) noexcept {
  constexpr int64_t kDoubt = 100'000'000;
  constexpr int kMostTwice = 9;  // 51 s
  int64_t asked = asked_ns_.load(std::memory_order_relaxed);
  if (!core_.device || unanswered_->load(std::memory_order_relaxed) > 0 ||
      now - asked < (kDoubt << std::min(late_.load(std::memory_order_relaxed), kMostTwice)) ||
      !asked_ns_.compare_exchange_strong(asked, now, std::memory_order_relaxed))
    return;
  if (asked == 0) return;  // 100 ms after the first doubt
  doubted_.store(true, std::memory_order_release);
  core_.context->workers().call(core_.port, process::WorkerTask::LookAndCarry);
}

Status DeviceHealth::look() noexcept {
  constexpr double kAnswer = 2;
  if (!doubted_.exchange(false, std::memory_order_acq_rel) || unanswered_->load(std::memory_order_relaxed) > 0) return {};
  for (const auto *mine : {&streams_.first, &streams_.second}) {
    const auto stream = mine->lock();
    if (!stream) continue;
    // A thread that waits for the device may have the driver locked, for instance to free memory. Such a wait may hang.
    try {
      const auto answer = device::call_within(
          kAnswer, [stream] { return stream->status(); },
          [unanswered = unanswered_] { unanswered->fetch_sub(1, std::memory_order_relaxed); });
      if (!answer) {  // the answer may be here meanwhile
        unanswered_->fetch_add(1, std::memory_order_relaxed);
        late_.fetch_add(1, std::memory_order_relaxed);
        return {};
      }
      if (!answer->ok()) return *answer;
    } catch (const std::exception &) { return {}; }  // no memory: the driver is asked again
  }
  return {};
}

void DeviceHealth::failed(const Status &s) noexcept {
  Failure why{{s.code, formatted("the device of {} has failed: {}", core_.id.text(core_.id.rank), s.text)}};
  if (s.code == Code::Device) why.ranks = {core_.id.rank};
  core_.fail(std::move(why), Tell::Peers);
}

void DeviceHealth::throw_why() const {
  const Status why = core_.failure();
  throw Error(why.code, why.text);
}

// A thread that asks a driver that is known to hang would be stuck as well.
void DeviceHealth::refuse_stuck() const {
  if (core_.device && core_.failed() && core_.device.runtime->stuck(core_.device.number)) throw_why();
}

device::PointerInfo DeviceHealth::find(const void *memory) {
  refuse_stuck();
  try {
    const device::PointerInfo found = core_.device.runtime->find(memory);
    if (found.where != device::Where::Unknown || !memory || core_.failed()) return found;
    const auto stream = first_stream();
    const Status s = stream ? stream->status() : Status{};
    if (s.ok()) return found;
    failed(s);
  } catch (const Error &e) { failed({e.code(), e.text()}); }
  throw_why();
}

}  // namespace isthmus::engine
