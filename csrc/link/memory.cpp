#include "link/memory.hpp"

#include <algorithm>
#include <cstring>

#include "base/copy.hpp"
#include "base/clock.hpp"
#include "base/handles.hpp"

namespace isthmus::link {
namespace {

constexpr uint64_t kPiece = 64 * 1024;  // bytes; sender and receiver work on different pieces
constexpr uint64_t kHeldBack = 4096;    // bytes, more than a processor's store buffer holds
constexpr uint64_t pad(uint64_t n) { return (n + 63) & ~uint64_t{63}; }
static_assert(ByteRing::kLeastCapacity - ByteRing::kLeastCapacity / 4 >= sizeof(FrameHeader) + kPiece + 4 * kHeldBack);

// Fetches lines of the frame that begins at `at` before they are needed: the line of the header, and the first line of the payload.
void fetch_to_write(ByteRing &r, uint64_t capacity, uint64_t at) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(r.data()[at & (capacity - 1)]));
  asm volatile("prefetchw %0" ::"m"(r.data()[(at + 64) & (capacity - 1)]));
#else
  __builtin_prefetch(r.data() + (at & (capacity - 1)), 1);
  __builtin_prefetch(r.data() + ((at + 64) & (capacity - 1)), 1);
#endif
}

void ring_write(ByteRing &r, uint64_t capacity, StreamingCopy &how, uint64_t at, const void *from, uint64_t n) {
  const uint64_t i = at & (capacity - 1), first = std::min(n, capacity - i);
  how.copy(r.data() + i, from, first);
  how.copy(r.data(), static_cast<const std::byte *>(from) + first, n - first);
}

void ring_read(ByteRing &r, uint64_t capacity, uint64_t at, void *to, uint64_t n) {
  const uint64_t i = at & (capacity - 1), first = std::min(n, capacity - i);
  copy_bytes(to, r.data() + i, first);
  copy_bytes(static_cast<std::byte *>(to) + first, r.data(), n - first);
}

}  // namespace

void ShmLink::post(Outgoing &out) noexcept {
  out.cut = 0;
  queue_.push(out);
}

// Brings all pages of a ring in, before its first large piece. Many links never carry anything large: their rings' pages come one by one.
void ShmLink::warm(ByteRing *ring, uint64_t capacity, uint64_t piece, bool &done) noexcept {
  if (done || piece < kPiece / 4) return;
  prefault(ring->data(), capacity);
  done = true;
}

bool ShmLink::push() {
  bool moved = false;
  while (Outgoing *out = queue_.front()) {
    const uint64_t rest = is_bare(out->header.kind) ? 0 : out->header.total - out->cut;
    const uint64_t n = std::min(rest, kPiece);
    const uint64_t at = out_->written.load(std::memory_order_relaxed);
    // The receiver's counter lies in the receiver's cache. It is read again only where the last value leaves too little room.
    const uint64_t need = sizeof(FrameHeader) + pad(n);
    if (out_capacity_ - (at - out_read_) < need) out_read_ = out_->read.load(std::memory_order_acquire);
    if (out_capacity_ - (at - out_read_) < need) break;
    FrameHeader h = out->header;
    h.offset = out->cut;
    h.bytes = static_cast<uint32_t>(n);
    warm(out_, out_capacity_, n, out_warm_);
    ring_write(*out_, out_capacity_, streaming_, at, &h, sizeof h);
    if (n) ring_write(*out_, out_capacity_, streaming_, at + sizeof h, out->data + out->cut, n);
    out->cut += n;
    out_->written.store(at + sizeof h + pad(n), std::memory_order_release);
    peer_bell_->ring();
    moved = true;
    bytes_sent.fetch_add(n + sizeof h, std::memory_order_relaxed);
    if (n == rest) {
      queue_.pop();
      finish(*out);
    }
  }
  if (moved) fetch_to_write(*out_, out_capacity_, out_->written.load(std::memory_order_relaxed));
  return moved;
}

bool ShmLink::pull(FrameSink &sink) {
  ByteRing *in = in_.load(std::memory_order_acquire);
  if (!in) return false;
  bool moved = false;
  for (int burst = 0; burst < 16; ++burst) {
    const uint64_t at = in->read.load(std::memory_order_relaxed);
    const uint64_t filled = in->written.load(std::memory_order_acquire) - at;
    if (filled == 0) break;
    __builtin_prefetch(in->data() +
                       ((at + sizeof(FrameHeader)) & (in_capacity_ - 1)));  // is fetched along with the header, not after it
    FrameHeader h;
    const char *fault = nullptr;
    if (filled < sizeof h || filled > in_capacity_ || at % 64 != 0) {
      fault = "ring counters out of range";
    } else {
      ring_read(*in, in_capacity_, at, &h, sizeof h);
      fault = frame_fault(h);
      if (!fault && filled < sizeof h + pad(h.bytes)) fault = "frame longer than the ring holds";
    }
    if (fault) {
      dead_ = true;
      sink.broken(std::string("protocol error: ") + fault);
      return true;
    }
    warm(in, in_capacity_, h.bytes, in_warm_);
    std::byte *to = nullptr;
    const Accept a = sink.accept(h, since_, to);
    if (a == Accept::Defer) {
      if (since_ == 0) since_ = now_ns();
      break;
    }
    since_ = 0;
    if (a == Accept::Take && h.bytes) ring_read(*in, in_capacity_, at + sizeof h, to, h.bytes);
    in->read.store(at + sizeof h + pad(h.bytes), std::memory_order_release);
    // A sender may wait for room. Such a sender has filled the ring but for less than a piece, by the value of `read` that it sees. That value is
    // older than ours by no more than the stores that a processor can hold back: a few small frames, each of which was stored somewhere. So
    // after a small frame in a ring that is nearly empty no sender waits, and the fence of ring(), which would hold up the receiver, can be
    // spared. Were that wrong, the sender would look again after its nap.
    if (filled > in_capacity_ / 4 || h.bytes > kHeldBack || a != Accept::Take) peer_bell_->ring();
    bytes_received.fetch_add(h.bytes + sizeof h, std::memory_order_relaxed);
    if (a == Accept::Take) sink.received(h);
    moved = true;
  }
  return moved;
}

bool ShmLink::quiet() const noexcept {
  const ByteRing *in = in_.load(std::memory_order_acquire);
  return queue_.empty() && (!in || in->written.load(std::memory_order_relaxed) == in->read.load(std::memory_order_relaxed));
}

bool ShmLink::progress(FrameSink &sink) {
  if (dead_) return false;
  const bool pushed = push();
  return pull(sink) || pushed;
}

void ShmLink::cancel(uint32_t, uint32_t theirs, uint32_t epoch, uint32_t source) {
  // The ring has only whole pieces, which were copied. So nothing of ours is read or written once the queue is clean.
  queue_.remove_if(
      [&](const Outgoing &o) { return o.header.member == theirs && o.header.epoch == epoch && o.header.source == source; },
      [](Outgoing &o) { finish(o); });
}

void LocalLink::post(Outgoing &out) noexcept {
  out.cut = 0;
  out.since = 0;
  queue_.push(out);
  bell_->ring();
}

bool LocalLink::progress(FrameSink &sink) {
  // Frames between different ranks of the process share this queue. A deferred frame must not hold up the others.
  while (Outgoing *out = queue_.front()) {
    queue_.pop();
    waiting_.push(*out);
  }
  bool moved = false;
  waiting_.remove_if(
      [&](Outgoing &out) {
        for (;;) {
          FrameHeader h = out.header;
          const uint64_t rest = is_bare(h.kind) ? 0 : h.total - out.cut;
          h.offset = out.cut;
          h.bytes = static_cast<uint32_t>(std::min<uint64_t>(rest, kMaxPayload));
          std::byte *to = nullptr;
          const Accept a = sink.accept(h, out.since, to);
          if (a == Accept::Defer) {
            if (out.since == 0) out.since = now_ns();
            return false;
          }
          out.since = 0;
          if (a == Accept::Take) copy_bytes(to, out.data + out.cut, h.bytes);
          out.cut += h.bytes;
          moved = true;
          if (a == Accept::Take) sink.received(h);
          if (h.bytes == rest) return true;
        }
      },
      [](Outgoing &out) { finish(out); });
  return moved;
}

void LocalLink::cancel(uint32_t, uint32_t theirs, uint32_t epoch, uint32_t source) {
  for (OutQueue *queue : {&queue_, &waiting_})
    queue->remove_if(
        [&](const Outgoing &o) { return o.header.member == theirs && o.header.epoch == epoch && o.header.source == source; },
        [](Outgoing &o) { finish(o); });
}

}  // namespace isthmus::link
