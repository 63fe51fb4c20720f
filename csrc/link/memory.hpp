// Links through memory. ShmLink: a byte ring in the sender's arena, which the receiver maps; the sender copies frames in, the receiver
// copies them out, in pieces small enough to stay in cache. LocalLink: between the ranks of one process, one copy from the sender's
// memory to the receiver's.
#pragma once

#include <cstddef>
#include <memory>

#include "base/doorbell.hpp"
#include "link/frame.hpp"

namespace isthmus::link {

// In shared memory. `written` belongs to the sender, `read` to the receiver; both only grow.
struct ByteRing {
  static constexpr uint64_t kCapacity = 512 * 1024;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  alignas(64) std::byte data[kCapacity];
};

class ShmLink final : public Link {
 public:
  // `out`: our ring, in our arena. `in`: the peer's ring towards us; may come later by set_in(). `peer_bell`: where the peer sleeps.
  ShmLink(ByteRing *out, Doorbell *peer_bell) : out_(out), peer_bell_(peer_bell) {}
  void set_in(ByteRing *in) noexcept { in_.store(in, std::memory_order_release); }
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  bool idle() const noexcept override { return queue_.empty(); }
  int64_t descriptors(std::vector<pollfd> &) const override { return kAnyTime; }
  const char *name() const noexcept override { return "shm"; }

 private:
  bool push();
  bool pull(FrameSink &sink);

  ByteRing *out_;
  std::atomic<ByteRing *> in_{nullptr};
  Doorbell *peer_bell_;
  OutQueue queue_;
  bool dead_ = false;
  int64_t since_ = 0;  // first refusal of the frame at the head of `in_`
};

class LocalLink final : public Link {
 public:
  explicit LocalLink(Doorbell *bell) : bell_(bell) {}
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  bool idle() const noexcept override { return queue_.empty() && waiting_.empty(); }
  int64_t descriptors(std::vector<pollfd> &) const override { return kAnyTime; }
  const char *name() const noexcept override { return "local"; }

 private:
  Doorbell *bell_;
  OutQueue queue_, waiting_;  // waiting_: deferred by the sink, retried
};

}  // namespace isthmus::link
