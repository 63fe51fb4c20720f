// Links through memory. ShmLink: a byte ring in the sender's arena, which the receiver maps; the sender copies frames in, the receiver
// copies them out, in pieces small enough to stay in cache. LocalLink: between the ranks of one process, one copy from the sender's
// memory to the receiver's.
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <new>

#include "base/doorbell.hpp"
#include "base/handover.hpp"
#include "link/frame.hpp"

namespace isthmus::link {

// In shared memory, its data behind it. `written` belongs to the sender, `read` to the receiver; both only grow.
struct ByteRing {
  // A power of two of bytes of data. A core reads what has left another's cache at more than twice the rate of what is still in it, and so
  // the ring is no smaller than most second-level caches, where there is memory for it.
  static constexpr uint64_t kMostCapacity = 2 << 20, kLeastCapacity = 128 << 10;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  std::byte *data() noexcept { return reinterpret_cast<std::byte *>(this + 1); }

  static constexpr uint64_t bytes(uint64_t capacity) { return sizeof(ByteRing) + capacity; }
  static constexpr bool is_capacity(uint64_t n) {
    return std::has_single_bit(n) && n >= kLeastCapacity && n <= kMostCapacity;
  }
  static ByteRing *at(std::byte *place) noexcept { return std::launder(reinterpret_cast<ByteRing *>(place)); }
};

class ShmLink final : public Link {
 public:
  // `out`: our ring, in our arena. `in`: the peer's ring towards us; comes by set_in(), maybe later; the first counts. Capacities as in ByteRing.
  // `peer_bell`: where the peer sleeps.
  ShmLink(ByteRing *out, uint64_t capacity, Doorbell *peer_bell, Stores stores = Stores::Auto)
      : out_(out), out_capacity_(capacity), hand_over_(stores), peer_bell_(peer_bell) {}
  void set_in(ByteRing *in, uint64_t capacity) noexcept {
    if (in_.load(std::memory_order_relaxed)) return;
    in_capacity_ = capacity;
    in_.store(in, std::memory_order_release);
  }
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  bool idle() const noexcept override { return queue_.empty(); }
  bool quiet() const noexcept override;
  int64_t descriptors(std::vector<pollfd> &) const override { return kAnyTime; }
  const char *name() const noexcept override { return "shm"; }

 private:
  bool push();
  bool pull(FrameSink &sink);
  void warm(ByteRing *ring, uint64_t capacity, uint64_t piece, bool &done) noexcept;

  ByteRing *out_;
  const uint64_t out_capacity_;
  uint64_t out_read_ = 0;  // `read` of our ring, when it was last looked at
  HandOver hand_over_;
  std::atomic<ByteRing *> in_{nullptr};
  uint64_t in_capacity_ = 0;
  Doorbell *peer_bell_;
  OutQueue queue_;
  bool dead_ = false, out_warm_ = false, in_warm_ = false;
  int64_t since_ = 0;  // first refusal of the frame at the head of `in_`
};

class LocalLink final : public Link {
 public:
  explicit LocalLink(Doorbell *bell) : bell_(bell) {}
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  bool idle() const noexcept override { return queue_.empty() && waiting_.empty(); }
  bool quiet() const noexcept override { return idle(); }
  int64_t descriptors(std::vector<pollfd> &) const override { return kAnyTime; }
  const char *name() const noexcept override { return "local"; }

 private:
  Doorbell *bell_;
  OutQueue queue_, waiting_;  // waiting_: deferred by the sink, retried
};

}  // namespace isthmus::link
