// SubmitLock is a lock whose holder gives a device work. One thread at a time is the holder, so the order of submission is that of the numbers.
//
// The holder calls the vendor's runtime and library, and may not come back from there. So no thread waits for the lock for ever. A holder that does
// not come back is left behind: the holder is counted, and named by its call.
//
//   holder                          another that submits      who drives, after a failure
//   take()
//   calls the vendor (kIn)
//     (the device hangs)            take(): waits
//                                   over(): has failed        try_take(): not held
//                                   returns none held         leave_behind(): notes the call, false
//                                                             ...
//                                                             leave_behind(), 2 s later, the same call:
//                                                               counts the thread, tells the runtime
//                                                               kIn -> kLeft, true
//                                                             ends the operations without the holder
//   comes back after all
//   sees kLeft: throws Error        (touches nothing more of what the call was about)
//   ~Held: counts itself back,
//   tells the runtime; free
//
// Where the holder comes back between the count and kLeft, the driving thread takes the count back and returns false.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "base/lock.hpp"
#include "device/calling.hpp"
#include "device/runtime.hpp"
#include "engine/operation.hpp"

namespace isthmus::engine {

class SubmitLock {
 public:
  class Held {
   public:
    Held() = default;
    Held(Held &&other) noexcept : lock_(std::exchange(other.lock_, nullptr)), outer_(other.outer_) {}
    Held &operator=(Held &&) = delete;
    ~Held() {
      if (lock_) lock_->give(outer_);
    }
    explicit operator bool() const noexcept { return lock_ != nullptr; }

   private:
    friend class SubmitLock;
    Held(SubmitLock *lock, device::VendorCall *outer) noexcept : lock_(lock), outer_(outer) {}
    SubmitLock *lock_ = nullptr;
    device::VendorCall *outer_ = nullptr;
  };

  Held try_take(const Operation *op = nullptr) noexcept {
    uint32_t free = kFree;
    if (!state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) return {};
    return begin(op);
  }
  // Waits for the lock. `over` is asked now and then: where `over` holds, the wait ends without the lock. `op` is what is submitted. `op` does not
  // change meanwhile.
  template <class Over>
  Held take(const Operation *op, Over over) noexcept {
    uint32_t free = kFree;
    if (state_.compare_exchange_strong(free, kHeld, std::memory_order_acquire)) return begin(op);
    struct Waits {
      std::atomic<uint32_t> &count;
      explicit Waits(std::atomic<uint32_t> &c) noexcept : count(c) { count.fetch_add(1, std::memory_order_seq_cst); }
      ~Waits() { count.fetch_sub(1, std::memory_order_relaxed); }
    } const waits{waiters_};
    const auto got = [&] {
      free = kFree;
      return state_.compare_exchange_strong(free, kHeld, std::memory_order_seq_cst);
    };
    for (Lock lock(mutex_);;) {
      if (given_.wait_for(lock, std::chrono::milliseconds(20), got)) return begin(op);
      lock.unlock();
      if (over()) return {};
      lock.lock();
    }
  }

  // True: the holder has not come back from one call since the first question about that call, 2 s ago. The holder is then left behind, until the
  // holder comes back. `who` is for the log. `runtime` is told, where there is one. One thread at a time asks.
  bool leave_behind(int64_t now_ns, const std::string &who, device::Runtime *runtime, int device) noexcept;
  bool left() const noexcept { return vendor_call_.left(); }
  // The call in which the holder is, for people. Empty: the holder is in no call.
  std::string call() const;
  // Calls `late` with the operation that is submitted just now, where the operation's deadline has passed and its thread is in a call.
  template <class Late>
  void if_late(int64_t now_ns, Late late) const noexcept {
    const Lock lock(op_lock_);
    if (op_ && now_ns >= op_->time.deadline_ns && vendor_call_.inside()) late(*op_);
  }

 private:
  static constexpr uint32_t kFree = 0, kHeld = 1;
  Held begin(const Operation *op) noexcept {
    if (op) {
      const Lock lock(op_lock_);
      op_ = op;
    }
    return {this, std::exchange(device::vendor_call_here, &vendor_call_)};
  }
  void give(device::VendorCall *outer) noexcept;

  std::atomic<uint32_t> state_{kFree}, waiters_{0};
  Mutex mutex_;
  Condition given_;
  device::VendorCall vendor_call_;
  mutable SpinLock op_lock_;
  const Operation *op_ ISTHMUS_GUARDED_BY(op_lock_) = nullptr;
  uint64_t seen_ = 0;  // the number of the call that leave_behind() has seen, and when
  int64_t seen_ns_ = 0;
  device::Runtime *runtime_ = nullptr;  // while the holder is left behind
  int device_ = -1;
};

}  // namespace isthmus::engine
