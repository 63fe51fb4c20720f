// Flow credit: a rank sends another one only what the other has room for.
//
// The receiver has a window of so many bytes for each sender. What travels with its data counts: plan data, and small messages. A sender
// may have sent at most `consumed + window` bytes in all, where the receiver has consumed so many of them. The receiver says what it has
// consumed in a word of shared memory, or grants it in a control message from time to time.
//
//   sender    SendCredit::take(bytes)  ... frame ...>   receiver
//             refused: later                            RecvCredit::consumed(bytes)
//             grant(total)             <... control ... RecvCredit::due(), once a quarter of the window is new
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "base/assert.hpp"

namespace isthmus::p2p {

class SendCredit {  // Any thread.
 public:
  // `consumed`: the receiver's word in shared memory, or null. Before the first byte.
  void open(uint64_t window, const std::atomic<uint64_t> *consumed) noexcept {
    window_ = window;
    consumed_ = consumed;
    granted_.store(window, std::memory_order_relaxed);
  }
  // Plan data. A frame larger than the window goes when all before it is consumed, but for what the receiver need not have told yet.
  bool take(uint64_t bytes) noexcept {
    return take(bytes, [&](uint64_t sent, uint64_t limit) {
      return sent + bytes <= limit || (bytes > window_ && sent + window_ < limit + std::max(window_ / 4, uint64_t{1}));
    });
  }
  // A message that nobody may receive yet. Three quarters of the window are for plan data, which such messages must not hold up: a plan sends up
  // to half of the window ahead of its first receive, where hosts are far apart, and of a quarter the receiver need not have told yet.
  bool take_for_message(uint64_t bytes) noexcept {
    return take(bytes, [&](uint64_t sent, uint64_t limit) { return sent + bytes <= limit - for_plans(); });
  }
  bool has_for_message(uint64_t bytes) const noexcept {
    return sent_.load(std::memory_order_relaxed) + bytes <= limit() - for_plans();
  }
  // The receiver allows so many bytes in all. Grants may come in any order.
  void grant(uint64_t total) noexcept {
    uint64_t old = granted_.load(std::memory_order_relaxed);
    while (old < total && !granted_.compare_exchange_weak(old, total, std::memory_order_release)) {}
  }

 private:
  uint64_t for_plans() const noexcept { return window_ - window_ / 4; }
  uint64_t limit() const noexcept {
    return consumed_ ? consumed_->load(std::memory_order_acquire) + window_ : granted_.load(std::memory_order_acquire);
  }
  template <class Fits>
  bool take(uint64_t bytes, Fits fits) noexcept {
    uint64_t sent = sent_.load(std::memory_order_relaxed);
    do {
      const uint64_t most = limit();
      ISTHMUS_ASSERT(sent <= most || bytes > window_ || sent - most <= kLargest,
                     "no more was sent than was granted, but one large frame");
      if (!fits(sent, most)) return false;
    } while (!sent_.compare_exchange_weak(sent, sent + bytes, std::memory_order_relaxed));
    return true;
  }
  static constexpr uint64_t kLargest = uint64_t{1} << 32;  // bytes of a frame

  uint64_t window_ = 0;
  const std::atomic<uint64_t> *consumed_ = nullptr;
  std::atomic<uint64_t> sent_{0}, granted_{0};
};

class RecvCredit {  // Any thread.
 public:
  // `consumed`: this rank's word for the sender in shared memory; null: the sender is told by control messages.
  void open(uint64_t window, std::atomic<uint64_t> *consumed) noexcept {
    window_ = window;
    word_ = consumed;
    granted_.store(window, std::memory_order_relaxed);
  }
  // So many bytes of the sender's are consumed. Not 0: the total that the sender is to be granted now.
  uint64_t consumed(uint64_t bytes) noexcept {
    if (word_) {
      word_->fetch_add(bytes, std::memory_order_release);
      return 0;
    }
    const uint64_t total = consumed_.fetch_add(bytes, std::memory_order_relaxed) + bytes + window_;
    uint64_t old = granted_.load(std::memory_order_relaxed);
    while (total > old && total - old >= window_ / 4)
      if (granted_.compare_exchange_weak(old, total, std::memory_order_relaxed)) return total;
    return 0;
  }

 private:
  uint64_t window_ = 0;
  std::atomic<uint64_t> *word_ = nullptr;
  std::atomic<uint64_t> consumed_{0}, granted_{0};
};

}  // namespace isthmus::p2p
