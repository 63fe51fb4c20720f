// What a communicator of a vendor's library keeps of its failures, and how often the communicator asks the library for one.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/lock.hpp"

namespace isthmus::ccl {

// The first failure. Later ones follow from the first and are dropped. Any thread.
class FirstFailure {
 public:
  void keep(Status s) {  // an OK status is no failure
    if (s.ok()) return;
    const Lock lock(mutex_);
    if (status_.ok()) status_ = std::move(s);
    happened_.store(true, std::memory_order_release);
  }
  bool happened() const noexcept { return happened_.load(std::memory_order_acquire); }
  Status status() const {
    const Lock lock(mutex_);
    return status_;
  }

 protected:
  mutable Mutex mutex_;
  mutable Status status_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<bool> happened_{false};
};

// A question that may be asked once a millisecond at most. Of several threads one asks.
class SeldomAsked {
 public:
  bool due() noexcept {
    const int64_t now = now_ns();
    int64_t asked = asked_ns_.load(std::memory_order_relaxed);
    return now - asked >= kApartNs && asked_ns_.compare_exchange_strong(asked, now);
  }

 private:
  static constexpr int64_t kApartNs = 1'000'000;
  std::atomic<int64_t> asked_ns_{0};
};

}  // namespace isthmus::ccl
