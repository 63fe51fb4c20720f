// A lock whose holder gives a device work. One thread at a time, so that the order of submission is that of the numbers.
//
// The holder calls the vendor's runtime and library, and may not come back from there. So nobody waits for the lock for ever. A holder that
// does not come back is left behind: it is counted, and named by its call. Such a thread may come back after all. It finds then that the
// communicator has failed, and touches nothing more.
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
  // Waits for it, unless `over` holds, which is asked now and then. `op`: what is submitted, which stays what it is meanwhile.
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

  // Whether the holder has not come back from one call since this was first asked about it, 2 s ago: then it is left behind, until it comes.
  // `who`, for the log; `runtime` is told, where there is one. One thread at a time.
  bool leave_behind(int64_t now_ns, const std::string &who, device::Runtime *runtime, int device) noexcept;
  bool left() const noexcept { return vendor_call_.left(); }
  // The call that the holder is in, for people; empty: it is in none.
  std::string call() const;
  // Of the operation that is submitted just now, if it is one that its thread has been in a call for and whose deadline has passed.
  template <class Late>
  void if_late(int64_t now_ns, Late late) const noexcept {
    const Lock lock(op_lock_);
    if (op_ && now_ns >= op_->deadline_ns && vendor_call_.inside()) late(*op_);
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
  uint64_t seen_ = 0;  // by leave_behind()
  int64_t seen_ns_ = 0;
  device::Runtime *runtime_ = nullptr;  // while the holder is left behind
  int device_ = -1;
};

}  // namespace isthmus::engine
