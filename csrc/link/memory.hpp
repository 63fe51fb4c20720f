// Links through memory. A ShmLink goes through a byte ring in the sender's arena, which the receiver maps. The sender copies frames in, and
// the receiver copies them out, in pieces small enough to stay in cache. A LocalLink, between the ranks of one process, makes one copy
// from the sender's memory to the receiver's.
//
//   sender, with the turn of its ShmLink          receiver, with the turn of its own
//     room: capacity - (written - read)
//     copies header and piece into the ring
//     written += both, release                      written, acquire: a frame is there
//     rings the receiver's doorbell    ------>      sink.accept(): Take, Drop or Defer
//                                                   copies the payload out
//     finds room again                 <------      read += both, release; rings where the sender may wait for room
#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <new>

#include "base/doorbell.hpp"
#include "base/streaming_copy.hpp"
#include "link/frame.hpp"

namespace isthmus::link {

// Lies in shared memory, with its data behind it. `written` belongs to the sender, and `read` to the receiver. Both only grow.
struct ByteRing {
  // Bytes of data, a power of two. A core reads what has left another core's cache at more than twice the rate of what is still in that cache.
  // So the ring is no smaller than most second-level caches, where there is memory for such a ring.
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
  // `out` is our ring, in our arena. `peer_bell` is where the peer sleeps. The peer's ring towards us comes by set_in(), maybe later, and the
  // first such call counts. Capacities are as in ByteRing.
  ShmLink(ByteRing *out, uint64_t capacity, Doorbell *peer_bell, Stores stores = Stores::Auto)
      : out_(out), out_capacity_(capacity), streaming_(stores), peer_bell_(peer_bell) {}
  void set_in(ByteRing *in, uint64_t capacity) noexcept {
    if (in_.load(std::memory_order_relaxed)) return;
    in_capacity_ = capacity;
    in_.store(in, std::memory_order_release);
  }
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  Left left() const noexcept override { return {!queue_.empty(), 0}; }
  bool quiet() const noexcept override;
  void let_go() noexcept override { dead_ = true; }
  int64_t descriptors(std::vector<pollfd> &) const override { return kAnyTime; }
  const char *name() const noexcept override { return "shm"; }

 private:
  bool push();
  bool pull(FrameSink &sink);
  void warm(ByteRing *ring, uint64_t capacity, uint64_t piece, bool &done) noexcept;

  ByteRing *out_;
  const uint64_t out_capacity_;
  uint64_t out_read_ = 0;  // `read` of our ring, as of the last look
  StreamingCopy streaming_;
  std::atomic<ByteRing *> in_{nullptr};
  uint64_t in_capacity_ = 0;
  Doorbell *peer_bell_;
  OutQueue queue_;
  bool dead_ = false, out_warm_ = false, in_warm_ = false;
  int64_t since_ = 0;  // when the sink first deferred the frame at the head of `in_`; 0: never
};

class LocalLink final : public Link {
 public:
  explicit LocalLink(Doorbell *bell) : bell_(bell) {}
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  Left left() const noexcept override { return {!queue_.empty() || !waiting_.empty(), 0}; }
  bool quiet() const noexcept override { return idle(); }
  int64_t descriptors(std::vector<pollfd> &) const override { return kAnyTime; }
  const char *name() const noexcept override { return "local"; }

 private:
  Doorbell *bell_;
  OutQueue queue_, waiting_;  // waiting_: frames that the sink may have deferred, which are offered again
};

}  // namespace isthmus::link
