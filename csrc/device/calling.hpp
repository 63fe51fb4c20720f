// Which call of a vendor's a thread is in. A call that gives a device work may not come back, because the device hangs or somebody who waits for
// it has its driver locked. Whoever would wait for that thread looks here, and may leave it behind: when it comes back after all, it is told
// so by an Error at once, and touches nothing more of what it was about.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/error.hpp"

namespace isthmus::device {

struct Spot {
  static constexpr uint32_t kOut = 0, kIn = 1, kLeft = 2;  // of the thread: in no call, in one, left behind there
  std::atomic<uint32_t> state{kOut};
  std::atomic<const char *> call{nullptr}, library{nullptr};  // static text, of the last one
  std::atomic<uint64_t> number{0};                            // another one for every call
  bool inside() const noexcept { return state.load(std::memory_order_acquire) != kOut; }
  bool left() const noexcept { return state.load(std::memory_order_acquire) == kLeft; }
};

inline thread_local Spot *spot_here = nullptr;  // of this thread, where somebody may ask

inline bool left_behind_here() noexcept { return spot_here && spot_here->left(); }

template <class F>
auto called(const char *library, const char *name, F call) {
  Spot *const spot = spot_here;
  if (!spot) return call();
  spot->library.store(library, std::memory_order_relaxed);
  spot->call.store(name, std::memory_order_relaxed);
  spot->number.store(spot->number.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  uint32_t state = Spot::kOut;
  const bool outermost = spot->state.compare_exchange_strong(state, Spot::kIn, std::memory_order_acq_rel);
  const auto result = call();
  state = Spot::kIn;
  if (outermost) spot->state.compare_exchange_strong(state, Spot::kOut, std::memory_order_acq_rel);
  if (state == Spot::kLeft) fail(Code::Aborted, "{}: {} came back too late", library, name);
  return result;
}

}  // namespace isthmus::device
