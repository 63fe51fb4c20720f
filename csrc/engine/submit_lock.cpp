#include "engine/submit_lock.hpp"

#include "base/log.hpp"
#include "device/abandoned.hpp"

namespace isthmus::engine {

void SubmitLock::give(device::VendorCall *outer) noexcept {
  device::vendor_call_here = outer;
  {
    const Lock lock(op_lock_);
    op_ = nullptr;
  }
  if (vendor_call_.left()) {
    device::abandoned_thread_is_back();
    if (runtime_) runtime_->came_back(device_);
    vendor_call_.state.store(device::VendorCall::kOut, std::memory_order_release);
  }
  state_.exchange(kFree, std::memory_order_seq_cst);
  if (waiters_.load(std::memory_order_seq_cst) == 0) return;
  { const Lock lock(mutex_); }  // a thread that looked and is about to sleep, sleeps by now
  given_.notify_one();
}

bool SubmitLock::leave_behind(int64_t now_ns, const std::string &who, device::Runtime *runtime, int device) noexcept {
  constexpr int64_t kPatience = 2'000'000'000;
  if (vendor_call_.left()) return true;
  const bool inside = vendor_call_.inside();
  const uint64_t number = vendor_call_.number.load(std::memory_order_relaxed);
  if (!inside || number != seen_ || seen_ns_ == 0) {
    seen_ = number;
    seen_ns_ = now_ns;
    return false;
  }
  if (now_ns - seen_ns_ < kPatience) return false;
  const std::string what = this->call();
  const char *const call = vendor_call_.call.load(std::memory_order_relaxed);
  runtime_ = runtime;
  device_ = device;
  // The count comes before kLeft: a holder that comes back and finds kLeft takes the count back.
  device::abandon_thread();
  if (runtime) runtime->does_not_come_back(device, call);
  uint32_t in = device::VendorCall::kIn;
  if (!vendor_call_.state.compare_exchange_strong(in, device::VendorCall::kLeft, std::memory_order_acq_rel)) {
    device::abandoned_thread_is_back();
    if (runtime) runtime->came_back(device);
    return false;
  }
  ISTHMUS_WARN(
      "{}: a thread has not come back from {} in {} s; it is left behind, and what the communicator "
      "has on the device stays there",
      who, what, kPatience / 1'000'000'000);
  return true;
}

std::string SubmitLock::call() const {
  if (!vendor_call_.inside()) return {};
  return formatted("{} ({})", vendor_call_.call.load(std::memory_order_relaxed),
                   vendor_call_.library.load(std::memory_order_relaxed));
}

}  // namespace isthmus::engine
