// The call of a vendor's runtime or library in which a thread is. A call that gives a device work may not come back: the device hangs, or a
// thread that waits for the caller has the driver locked. A thread that would wait for the caller looks at the VendorCall first, and may
// leave the caller behind.
//
//   caller                                  thread that waits for the caller
//     called(): state = kIn
//     the vendor's call ...                   inside(): waits a while
//       (the device hangs)                    state: kIn -> kLeft; goes on without the caller
//     ... comes back after all
//     state is kLeft: throws Error            (what the call was about may be gone)
//
// Because called() throws at once, the caller touches nothing more of what the call was about.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/error.hpp"

namespace isthmus::device {

// The thread that makes the calls writes. Any thread reads. A thread that leaves the caller behind writes `state` alone.
struct VendorCall {
  static constexpr uint32_t kOut = 0, kIn = 1,
                            kLeft = 2;  // the thread is in no call, is in a call, was left behind in a call
  std::atomic<uint32_t> state{kOut};
  std::atomic<const char *> call{nullptr}, library{nullptr};  // static text, of the last call
  std::atomic<uint64_t> number{0};                            // another number for every call
  bool inside() const noexcept { return state.load(std::memory_order_acquire) != kOut; }
  bool left() const noexcept { return state.load(std::memory_order_acquire) == kLeft; }
};

inline thread_local VendorCall *vendor_call_here =
    nullptr;  // of this thread; null: no other thread asks which call it is in

inline bool left_behind_here() noexcept { return vendor_call_here && vendor_call_here->left(); }

// Makes a call of a vendor's. Meanwhile the VendorCall says in which call this thread is. Where calls nest, the thread is in a call until the
// outermost call has returned.
template <class F>
auto called(const char *library, const char *name, F call) {
  VendorCall *const here = vendor_call_here;
  if (!here) return call();
  here->library.store(library, std::memory_order_relaxed);
  here->call.store(name, std::memory_order_relaxed);
  here->number.store(here->number.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  uint32_t state = VendorCall::kOut;
  const bool outermost = here->state.compare_exchange_strong(state, VendorCall::kIn, std::memory_order_acq_rel);
  const auto result = call();
  state = VendorCall::kIn;
  if (outermost) here->state.compare_exchange_strong(state, VendorCall::kOut, std::memory_order_acq_rel);
  if (state == VendorCall::kLeft) fail(Code::Aborted, "{}: {} came back too late", library, name);
  return result;
}

}  // namespace isthmus::device
