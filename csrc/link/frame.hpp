// What travels on a link: frames, a 64-byte header and a payload. A Link moves frames between two processes, in order for small
// ones; it has no collective logic and knows neither plans nor tags.
//
// Thread rules: post() from any thread. progress() and cancel() by one thread at a time: whoever holds the link's `turn`, which is
// only ever tried, never waited for (cancel() excepted, whose wait is bounded by one non-blocking burst).
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "base/lock.hpp"

namespace isthmus::link {

enum class FrameKind : uint8_t {
  PlanData = 1,
  Message = 2,
  RequestToSend = 3,
  ClearToSend = 4,
  MessageData = 5,
  Placed = 6
};

struct FrameHeader {  // as on the wire, little endian (every supported host is)
  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::PlanData;
  uint8_t dtype = 0;
  uint16_t slot = 0;    // Placed: of the receiver's window, where the message lies
  uint32_t member = 0;  // index of the communicator in the receiving process
  uint32_t epoch = 0;   // of the communicator; frames of another are dropped
  uint32_t source = 0;  // rank of the sender
  int32_t tag = 0;      // messages: the user's tag. PlanData: low bits of the sequence number
  uint64_t id = 0;      // PlanData: number of the frame between this pair; messages: chosen by the sender
  uint64_t offset = 0;  // of this payload in the whole
  uint64_t total = 0;   // bytes of the whole
  uint64_t digest = 0;  // PlanData: of the plan; messages: bytes of the message, of which `total` are this part's
  uint32_t bytes = 0;   // of this payload
  uint32_t part = 0;    // messages: which part of the message
  static constexpr uint32_t kMagic = 0x48545349;  // "ISTH"
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);
inline constexpr uint32_t kMaxPayload = 1u << 20;

// A frame of this kind has no payload, whatever its total says.
constexpr bool is_bare(FrameKind kind) noexcept {
  return kind == FrameKind::RequestToSend || kind == FrameKind::ClearToSend || kind == FrameKind::Placed;
}

// Empty text: well-formed. Bounds only; what the fields mean is the engine's to check.
const char *frame_fault(const FrameHeader &h) noexcept;

// One thing to send. The caller owns it and must keep it and its data until `*pending` has been decremented.
struct Outgoing {
  FrameHeader header;  // total: bytes of data; bytes and offset are set by the link, which cuts
  const std::byte *data = nullptr;
  std::atomic<uint32_t> *pending = nullptr;  // decremented (release) when the link no longer reads `data`
  std::atomic<uint32_t> *also = nullptr;     // decremented before it, if set
  void (*finished)(Outgoing &) = nullptr;    // called then, under the link's turn, if set
  Outgoing *next = nullptr;
  uint64_t cut = 0;     // link: bytes given to sockets so far
  uint32_t pieces = 0;  // link: pieces not yet written
  int64_t since = 0;    // link within a process: first refusal of the next piece
};

enum class Accept : uint8_t { Take, Drop, Defer };

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Where the payload of `h` goes. Take sets `to` (h.bytes bytes from there). Defer: ask again at the next progress(); `since_ns` is
  // when it was first asked. Must not block.
  virtual Accept accept(const FrameHeader &h, int64_t since_ns, std::byte *&to) = 0;
  virtual void received(const FrameHeader &h) = 0;  // the payload of a taken frame is complete
  virtual void broken(const std::string &why) = 0;  // the link is dead, and ends nothing more but by cancel(); called once
};

class Link {
 public:
  static constexpr int64_t kAnyTime = INT64_MAX;
  virtual ~Link() = default;
  virtual void post(Outgoing &out) noexcept = 0;
  // Moves what can be moved without blocking. True if something has come to an end, or much was moved; that there is more to do
  // at once. Only with the turn.
  virtual bool progress(FrameSink &sink) = 0;
  // Forgets everything of one rank's membership, index `ours`: queued frames (their `pending` falls), partly read payloads (the rest is drained),
  // partly written ones (the rest is copied, and goes out as it was). `theirs`: the peer's index of it, as in our outgoing headers; `source`: our
  // rank, since other ranks of this process may send to the same index.
  virtual void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) = 0;
  virtual bool idle() const noexcept = 0;  // nothing queued, nothing half written
  // Progress would find nothing to do just now. Also without the turn, which costs more than this look.
  virtual bool quiet() const noexcept { return false; }
  // What to sleep on (none for memory links), and for how long at most.
  virtual int64_t descriptors(std::vector<pollfd> &fds) const = 0;
  virtual void before_sleep() {}                  // somebody is about to sleep on them. Only with the turn.
  virtual const char *name() const noexcept = 0;  // "tcp", "shm", "local"

  bool try_turn() noexcept { return !turn_.test_and_set(std::memory_order_acquire); }
  void end_turn() noexcept { turn_.clear(std::memory_order_release); }
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};

 private:
  std::atomic_flag turn_;
};

// FIFO of Outgoing that any thread appends to and the holder of the turn takes from.
class OutQueue {
 public:
  void push(Outgoing &out) noexcept {
    out.next = nullptr;
    lock_.lock();
    (tail_ ? tail_->next : head_) = &out;
    tail_ = &out;
    size_.fetch_add(1, std::memory_order_relaxed);
    lock_.unlock();
  }
  Outgoing *front() noexcept {
    if (size_.load(std::memory_order_acquire) == 0) return nullptr;
    lock_.lock();
    Outgoing *h = head_;
    lock_.unlock();
    return h;
  }
  void pop() noexcept {
    lock_.lock();
    head_ = head_->next;
    if (!head_) tail_ = nullptr;
    size_.fetch_sub(1, std::memory_order_relaxed);
    lock_.unlock();
  }
  // Unlinks every entry for which `match` holds and gives it to `drop`.
  template <class M, class D>
  void remove_if(M match, D drop) noexcept {
    Outgoing *gone = nullptr;
    lock_.lock();
    Outgoing **at = &head_;
    tail_ = nullptr;
    while (*at) {
      Outgoing *o = *at;
      if (match(*o)) {
        *at = o->next;
        o->next = gone;
        gone = o;
        size_.fetch_sub(1, std::memory_order_relaxed);
      } else {
        tail_ = o;
        at = &o->next;
      }
    }
    lock_.unlock();
    while (gone) {
      Outgoing *o = gone;
      gone = gone->next;
      drop(*o);
    }
  }
  bool empty() const noexcept { return size_.load(std::memory_order_acquire) == 0; }

 private:
  SpinLock lock_;
  Outgoing *head_ ISTHMUS_GUARDED_BY(lock_) = nullptr;
  Outgoing *tail_ ISTHMUS_GUARDED_BY(lock_) = nullptr;
  std::atomic<uint32_t> size_{0};
};

inline void finish(Outgoing &out) noexcept {
  // `pending` may be the last thing that keeps `out` alive: read what is needed first.
  auto *pending = out.pending, *also = out.also;
  if (out.finished) out.finished(out);
  if (also) also->fetch_sub(1, std::memory_order_release);
  if (pending) pending->fetch_sub(1, std::memory_order_release);
}

}  // namespace isthmus::link
