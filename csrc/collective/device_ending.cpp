#include "collective/device_ending.hpp"

#include "base/clock.hpp"
#include "base/log.hpp"

namespace isthmus::collective {
namespace {

// How long an aborted operation may take to leave the stream before a thread in the library counts as stuck there.
constexpr int64_t kGrace = 100'000'000;
constexpr int64_t kRunning = 500'000'000, kSecondBytes = 500'000'000;  // where all ranks have come: longer, and by the size
constexpr int64_t kPatience = 2'000'000'000;                           // for work that is not in the library
constexpr int64_t kAbort = 100'000'000;  // for the library to hear of the abort, before the gates let go
constexpr int64_t kStop = 200'000'000, kStopped = 5'000'000'000;  // before the stream is stopped, and until it was

}  // namespace

void DeviceEnding::watch(bool endless) noexcept {
  endless_ = endless;
  cuts_.store(work_.stream->cuts());
}

void DeviceEnding::begin(uint64_t bytes) noexcept {
  last_bytes_.store(bytes);
  if (idle()) cuts_.store(work_.stream->cuts());
}

// The library aborts before the gates open: a call that stands behind a gate may be one that must not begin, of sizes that do not fit, say.
void DeviceEnding::abort(Spare spare) noexcept {
  int64_t since = 0;
  const int64_t now = now_ns();
  if (aborted_ns_.compare_exchange_strong(since, now)) {
    since = now;
    work_.cancelled.store(true, std::memory_order_release);
  }
  if (spare == Spare::Nothing && !handed_over_.load() && work_.communicator && !library_aborted_.exchange(true))
    work_.communicator->abort();
  if (!work_.communicator || !work_.communicator->aborting() || now - since >= kAbort) work_.doors.let_go();
}

void DeviceEnding::let_go_if_aborted() noexcept {
  if (aborted_ns_.load() != 0) work_.doors.let_go();
}

void DeviceEnding::leave_behind() noexcept {
  left_behind_.store(true, std::memory_order_release);
  let_go_if_aborted();
}

bool DeviceEnding::wants_stop(int64_t now) const noexcept {
  return endless_ && !idle() && now - aborted_ns_.load() >= kStop;
}

bool DeviceEnding::settled(int64_t now, bool alone, bool refused) noexcept {
  if (has_ended() || left_behind_.load() || dead_.load(std::memory_order_acquire)) return true;
  const int64_t passed = waited_.look(now);
  const auto running = kRunning + static_cast<int64_t>(last_bytes_.load()) * (1'000'000'000 / kSecondBytes);
  if (endless_ && !refused && passed < kStopped) return false;  // the stream is about to be stopped
  if (passed < (alone ? kGrace : running)) return false;
  if (const char *call = work_.doing()) {
    ISTHMUS_WARN("{} is stuck in {}, which has no call that ends it: its thread is left behind", work_.family(), call);
    work_.communicator->leave_behind();
  } else if (!(work_.communicator && work_.communicator->held_up()) && passed < kPatience) {
    return false;  // the stream is in a copy of ours, which ends
  }
  left_behind_.store(true);  // what still stands in the queue is skipped
  return true;
}

}  // namespace isthmus::collective
