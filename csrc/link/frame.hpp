// Frames travel on a link: a header of 64 bytes and a payload. A Link moves frames between two processes, and keeps the order of small
// ones. A link has no collective logic, and knows neither plans nor tags.
//
// Any thread calls post(). One thread at a time calls progress() and cancel(): the thread that holds the link's turn. A thread tries for
// the turn and never waits for it. The exception is cancel(), whose wait is bounded by a few non-blocking bursts.
//
//   thread A, drives an operation              thread B, the progress thread
//     try_turn(): true
//     progress(): sends, receives                try_turn(): false, B goes on with another link
//     ...                                        post(): B's frame waits in a queue of the link
//     end_turn()
//                                                try_turn(): true
//     try_turn(): false                          progress(): sends what waits, also of A's operation
//                                                end_turn()
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

struct FrameHeader {  // as on the wire: little endian, as every supported host is
  uint32_t magic = kMagic;
  FrameKind kind = FrameKind::PlanData;
  uint8_t dtype = 0;
  uint16_t slot = 0;    // Placed: the slot of the receiver's window in which the message lies
  uint32_t member = 0;  // index of the communicator in the receiving process
  uint32_t epoch = 0;   // of the communicator; frames of another epoch are dropped
  uint32_t source = 0;  // rank of the sender
  int32_t tag = 0;      // messages: the user's tag. PlanData: low bits of the sequence number
  uint64_t id = 0;      // PlanData: number of the frame between this pair; messages: the sender's choice
  uint64_t offset = 0;  // of this payload in the whole
  uint64_t total = 0;   // bytes of the whole
  uint64_t digest = 0;  // PlanData: of the plan; messages: bytes of the message, of which `total` are this part's
  uint32_t bytes = 0;   // of this payload
  uint32_t part = 0;    // messages: which part of the message
  static constexpr uint32_t kMagic = 0x48545349;  // "ISTH"
};
static_assert(sizeof(FrameHeader) == 64 && std::is_trivially_copyable_v<FrameHeader>);
inline constexpr uint32_t kMaxPayload = 1u << 20;

// Whether a frame of this kind has no payload, whatever the frame's total says.
constexpr bool is_bare(FrameKind kind) noexcept {
  return kind == FrameKind::RequestToSend || kind == FrameKind::ClearToSend || kind == FrameKind::Placed;
}

// What is wrong with a header; nullptr: it is well-formed. Only bounds are checked. The engine checks what the fields mean.
const char *frame_fault(const FrameHeader &h) noexcept;

// One thing to send. The caller owns it, and must keep it and its data until `*pending` has been decremented.
struct Outgoing {
  FrameHeader header;  // total: bytes of data. The link cuts the data, and sets bytes and offset of each piece.
  const std::byte *data = nullptr;
  std::atomic<uint32_t> *pending = nullptr;  // decremented (release) when the link no longer reads `data`
  std::atomic<uint32_t> *also = nullptr;     // decremented before it, if set
  void (*finished)(Outgoing &) = nullptr;    // called before both, under the link's turn, if set
  Outgoing *next = nullptr;
  uint64_t cut = 0;     // link: bytes given to sockets so far
  uint32_t pieces = 0;  // link: pieces not yet written
  int64_t since = 0;    // link within a process: when the sink first deferred the next piece; 0: never
};

enum class Accept : uint8_t { Take, Drop, Defer };

class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // Says where the payload of `h` goes. Must not block. Take: `to` is set, and the payload's h.bytes bytes go there. Drop: the payload goes
  // nowhere. Defer: the link asks again at the next progress(). `since_ns` is when the sink first deferred the frame; 0: never.
  virtual Accept accept(const FrameHeader &h, int64_t since_ns, std::byte *&to) = 0;
  virtual void received(const FrameHeader &h) = 0;  // the payload of a taken frame is complete
  virtual void broken(const std::string &why) = 0;  // called once: the link is dead, and only cancel() ends what was posted
};

class Link {
 public:
  static constexpr int64_t kAnyTime = INT64_MAX;
  virtual ~Link() = default;
  virtual void post(Outgoing &out) noexcept = 0;
  // Moves what can be moved without blocking. True: something has come to an end or much was moved, so there may be more to do at once. Only
  // with the turn.
  virtual bool progress(FrameSink &sink) = 0;
  // Forgets everything of one rank's membership, whose index here is `ours`:
  //   - Queued frames go, and their `pending` falls.
  //   - Partly read payloads: the rest is drained.
  //   - Partly written payloads: the rest is copied, and goes out unchanged.
  // `theirs` is the peer's index of the membership, as in our outgoing headers. `source` is our rank, since other ranks of this process may
  // send to the same index.
  virtual void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) = 0;
  // What a process that ends now may lose of what was posted: what is queued, half written, or under way where it may yet be lost. Only with the turn.
  struct Left {
    bool any = false;
    int64_t through =
        0;  // bytes of all that was posted, which this process need not hold any more. Rises as it goes on, and may fall
  };
  virtual Left left() const noexcept = 0;
  bool idle() const noexcept { return !left().any; }
  // Whether progress() would find nothing to do just now. May be asked without the turn, which costs more than this look.
  virtual bool quiet() const noexcept { return false; }
  // Adds what a thread is to sleep on (nothing for links through memory). Returns how long at most.
  virtual int64_t descriptors(std::vector<pollfd> &fds) const = 0;
  // Nobody posts any more, and nothing comes: the link gives back what it can. Only with the turn.
  virtual void let_go() noexcept {}
  virtual void before_sleep() {}                  // a thread is about to sleep on the descriptors. Only with the turn.
  virtual const char *name() const noexcept = 0;  // "tcp", "shm", "local"

  bool try_turn() noexcept { return !turn_.test_and_set(std::memory_order_acquire); }
  void end_turn() noexcept { turn_.clear(std::memory_order_release); }
  std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};
  std::atomic<uint64_t> bytes_helped{0};  // of these, moved by threads that helped (link/hands.hpp)

 private:
  std::atomic_flag turn_;
};

// A queue of Outgoing, first in, first out. Any thread appends. The holder of the turn takes.
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
  // Unlinks every entry for which `match` holds, and gives each to `drop`.
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
  // `pending` may be the last thing that keeps `out` alive. So what is needed is read first.
  auto *pending = out.pending, *also = out.also;
  if (out.finished) out.finished(out);
  if (also) also->fetch_sub(1, std::memory_order_release);
  if (pending) pending->fetch_sub(1, std::memory_order_release);
}

}  // namespace isthmus::link
