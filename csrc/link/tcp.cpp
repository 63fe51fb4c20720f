#include "link/tcp.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/copy.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"

namespace isthmus::link {
namespace {

constexpr uint64_t kBulk = 64 * 1024;      // larger payloads may leave stream 0
constexpr uint32_t kPiece = 512 * 1024;    // of a bulk payload; the header's 64 bytes are noise beside it
constexpr size_t kBuffer = 64 + 8 * 1024;  // one read takes a header and a small payload; larger payloads go past the buffer
constexpr size_t kBurst =
    2 * 1024 * 1024;  // bytes a direction and stream in one progress(), so that both directions get a turn

constexpr size_t kWorth = 32 * 1024;        // less than this of a payload is no reason to look again at once
constexpr uint32_t kLowWater = 128 * 1024;  // who sleeps within a payload is woken for so much of it, or for its end
constexpr int64_t kAskAgain = 250'000;      // a frame that was refused is offered again after so long

constexpr int64_t kOthers = 500'000'000;      // how long the other streams may be silent once one has ended
constexpr int64_t kLongest = 10'000'000'000;  // and how long they may go on at all

}  // namespace

struct TcpLink::Stream {
  UniqueFd socket;
  // writing
  Outgoing *out = nullptr;
  FrameHeader header;
  const std::byte *data = nullptr;
  uint64_t sent = 0;  // of header and payload
  bool writing = false;
  std::vector<std::byte>
      rest;           // the operation was cancelled: a copy of what is still to be sent, so that the frame stays whole
  bool mute = false;  // nothing can be written to it any more
  std::atomic<bool> over{false};  // nothing more comes from it; read by sleepers
  std::atomic<bool> full{false};  // the last write would have blocked; read by sleepers
  // reading
  std::byte buffer[kBuffer];
  size_t begin = 0, end = 0;
  FrameHeader in;
  std::byte *to = nullptr;  // nullptr while `left` > 0: drain
  uint32_t left = 0;
  bool have_header = false, accepted = false, taken = false;
  int64_t since = 0;
  std::atomic<bool> refused{false};  // the sink has not taken the frame yet; read by sleepers
  uint32_t low_water = 1;            // for so many bytes the socket says that it is readable

  uint32_t payload_left() const noexcept { return have_header && accepted && begin == end ? left : 0; }
  void set_low_water(uint32_t bytes) noexcept {
    const int n = static_cast<int>(bytes);
    if (bytes != low_water && ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n) == 0) low_water = bytes;
  }
};

TcpLink::TcpLink(std::vector<UniqueFd> sockets) {
  for (auto &fd : sockets) {
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->socket = std::move(fd);
  }
}

TcpLink::~TcpLink() = default;

void TcpLink::post(Outgoing &out) noexcept {
  out.cut = 0;
  out.pieces = 0;
  const bool bulk =
      out.header.total > kBulk && (out.header.kind == FrameKind::PlanData || out.header.kind == FrameKind::MessageData);
  (bulk ? bulk_ : ordered_).push(out);
}

bool TcpLink::next_piece(Stream &s, bool first) {
  OutQueue *queue = first && !ordered_.empty() ? &ordered_ : &bulk_;
  Outgoing *out = queue->front();
  if (!out) return false;
  s.out = out;
  s.header = out->header;
  const bool bare = is_bare(s.header.kind);
  const uint64_t rest = bare ? 0 : s.header.total - out->cut;
  s.header.offset = bare ? 0 : out->cut;
  s.header.bytes = static_cast<uint32_t>(std::min<uint64_t>(rest, queue == &ordered_ ? kMaxPayload : kPiece));
  s.data = out->data + out->cut;
  out->cut = bare ? out->header.total : out->cut + s.header.bytes;
  ++out->pieces;
  if (bare || out->cut == out->header.total) queue->pop();
  s.sent = 0;
  s.writing = true;
  writing_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

bool TcpLink::write_stream(Stream &s, bool first) {
  bool moved = false;
  size_t burst = 0;
  s.full.store(false, std::memory_order_relaxed);
  while (burst < kBurst && (s.writing || next_piece(s, first))) {
    const uint64_t whole = sizeof(FrameHeader) + s.header.bytes;
    iovec parts[2];
    int count = 0;
    if (s.sent < sizeof(FrameHeader))
      parts[count++] = {reinterpret_cast<std::byte *>(&s.header) + s.sent, sizeof(FrameHeader) - s.sent};
    const uint64_t done = s.sent > sizeof(FrameHeader) ? s.sent - sizeof(FrameHeader) : 0;
    if (done < s.header.bytes) { parts[count++] = {const_cast<std::byte *>(s.data + done), s.header.bytes - done}; }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t n = ::sendmsg(s.socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        s.full.store(true, std::memory_order_relaxed);
        break;
      }
      s.mute = true;  // what the peer sent before is still to be read
      note_end(system_text("send", errno));
      return moved;
    }
    s.sent += static_cast<uint64_t>(n);
    burst += static_cast<size_t>(n);
    moved = moved || burst >= kWorth || s.sent == whole;
    bytes_sent.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    if (s.sent < whole) continue;
    s.writing = false;
    s.rest = {};
    writing_.fetch_sub(1, std::memory_order_relaxed);
    Outgoing *out = s.out;
    s.out = nullptr;
    if (out && --out->pieces == 0 && out->cut == out->header.total) finish(*out);
  }
  return moved;
}

bool TcpLink::read_stream(Stream &s, FrameSink &sink) {
  const bool moved = read_frames(s, sink);
  // Somebody may sleep on the socket while we read from it: what is left must be enough to wake him.
  if (const uint32_t left = std::max(s.payload_left(), 1u); s.low_water > left) s.set_low_water(left);
  return moved;
}

bool TcpLink::read_frames(Stream &s, FrameSink &sink) {
  bool moved = false;
  size_t burst = 0;
  bool drained = false;  // the last read came back short: nothing more waits in the kernel
  while (burst < kBurst) {
    if (!s.have_header) {
      if (s.end - s.begin < sizeof(FrameHeader)) {
        if (drained) return moved;
        if (s.begin > 0) {
          std::memmove(s.buffer, s.buffer + s.begin, s.end - s.begin);
          s.end -= s.begin;
          s.begin = 0;
        }
        const size_t room = kBuffer - s.end;
        const ssize_t n = ::recv(s.socket.get(), s.buffer + s.end, room, MSG_DONTWAIT);
        if (n == 0) return lose(s, "the peer closed the connection"), moved;
        if (n < 0) {
          if (errno == EINTR) continue;
          if (errno == EAGAIN || errno == EWOULDBLOCK) return moved;
          return lose(s, system_text("recv", errno)), moved;
        }
        drained = static_cast<size_t>(n) < room;
        s.end += static_cast<size_t>(n);
        burst += static_cast<size_t>(n);
        moved = true;
        continue;
      }
      std::memcpy(&s.in, s.buffer + s.begin, sizeof s.in);
      s.begin += sizeof s.in;
      if (const char *fault = frame_fault(s.in)) return die(sink, formatted("protocol error: {}", fault)), moved;
      s.have_header = true;
      s.accepted = false;
      s.since = 0;
    }
    if (!s.accepted) {
      const Accept a = sink.accept(s.in, s.since, s.to);
      s.refused.store(a == Accept::Defer, std::memory_order_relaxed);
      if (a == Accept::Defer) {
        if (s.since == 0) s.since = now_ns();
        return moved;
      }
      s.accepted = true;
      s.left = s.in.bytes;
      s.taken = a == Accept::Take;
      if (!s.taken) s.to = nullptr;
      moved = true;
    }
    while (s.left > 0) {
      if (s.begin < s.end) {
        const size_t n = std::min<size_t>(s.left, s.end - s.begin);
        if (s.to) copy_bytes(s.to, s.buffer + s.begin, n), s.to += n;
        s.begin += n;
        s.left -= static_cast<uint32_t>(n);
        moved = true;
        continue;
      }
      if (drained) return moved;
      s.begin = s.end = 0;
      // A drained payload goes through the buffer; anything else straight to where it belongs.
      const size_t want = s.to ? s.left : std::min<size_t>(s.left, kBuffer);
      const ssize_t n = ::recv(s.socket.get(), s.to ? s.to : s.buffer, want, MSG_DONTWAIT);
      if (n == 0) return lose(s, "the peer closed the connection"), moved;
      if (n < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return moved;
        return lose(s, system_text("recv", errno)), moved;
      }
      burst += static_cast<size_t>(n);
      if (s.to) s.to += n;
      s.left -= static_cast<uint32_t>(n);
      moved = moved || burst >= kWorth || s.left == 0;
      drained = static_cast<size_t>(n) < want;
    }
    bytes_received.fetch_add(s.in.bytes + sizeof(FrameHeader), std::memory_order_relaxed);
    s.have_header = false;
    if (s.taken) sink.received(s.in);
  }
  return moved;
}

bool TcpLink::progress(FrameSink &sink) {
  if (dead_.load(std::memory_order_relaxed)) return false;
  bool moved = false;
  for (size_t i = 0; i < streams_.size(); ++i)
    if (!streams_[i]->over && !streams_[i]->mute) moved |= write_stream(*streams_[i], i == 0);
  for (size_t i = 0; i < streams_.size() && !dead_.load(std::memory_order_relaxed); ++i)
    if (!streams_[i]->over) moved |= read_stream(*streams_[i], sink);
  if (end_ns_ == 0 || dead_.load(std::memory_order_relaxed)) return moved;
  // A peer that has said all it had to say closes its streams at once, but they are read one after another.
  const int64_t now = now_ns();
  if (moved) end_ns_ = now;
  const bool all =
      std::all_of(streams_.begin(), streams_.end(), [](const auto &s) { return s->over.load(std::memory_order_relaxed); });
  if (all || now - end_ns_ > kOthers || now - first_end_ns_ > kLongest) die(sink, end_text_);
  return moved;
}

void TcpLink::note_end(std::string why) {
  if (end_ns_ == 0) {
    end_text_ = std::move(why);
    first_end_ns_ = now_ns();
  }
  end_ns_ = now_ns();
}

void TcpLink::lose(Stream &s, std::string why) {
  s.over = true;
  note_end(std::move(why));
}

void TcpLink::cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) {
  for (auto &s : streams_) {
    if (s->writing && s->out && s->header.member == theirs && s->header.epoch == epoch && s->header.source == source) {
      Outgoing *out = s->out;
      s->out = nullptr;
      if (s->sent == 0) {  // nothing of it has left
        s->writing = false;
        writing_.fetch_sub(1, std::memory_order_relaxed);
      } else {
        // The user has his buffer back, and the peer must not take anything else for his data: the abort goes another way and may be
        // later. At most one piece, and never on the way of an operation that succeeds.
        const uint64_t done = s->sent > sizeof(FrameHeader) ? s->sent - sizeof(FrameHeader) : 0;
        s->rest.assign(s->data + done, s->data + s->header.bytes);
        s->data = s->rest.data() - done;
      }
      if (--out->pieces == 0 && out->cut == out->header.total) finish(*out);
    }
    if (s->have_header && s->in.member == ours && s->in.epoch == epoch) s->to = nullptr, s->taken = false;
  }
  for (OutQueue *queue : {&ordered_, &bulk_})
    queue->remove_if(
        [&](const Outgoing &o) { return o.header.member == theirs && o.header.epoch == epoch && o.header.source == source; },
        [](Outgoing &o) { finish(o); });
}

void TcpLink::die(FrameSink &sink, const std::string &why) {
  if (dead_.exchange(true)) return;
  // What was not sent has not succeeded, so nothing is finished here: it waits in the queues for cancel(), when the members fail.
  for (auto &s : streams_) {
    if (s->writing) {
      s->writing = false;
      writing_.fetch_sub(1, std::memory_order_relaxed);
      if (Outgoing *out = std::exchange(s->out, nullptr); out && --out->pieces == 0 && out->cut == out->header.total)
        bulk_.push(*out);
    }
    s->have_header = false;
    s->to = nullptr;
  }
  sink.broken(why);
}

bool TcpLink::idle() const noexcept {
  return ordered_.empty() && bulk_.empty() && writing_.load(std::memory_order_relaxed) == 0;
}

int64_t TcpLink::descriptors(std::vector<pollfd> &fds) const {
  if (dead_.load(std::memory_order_relaxed)) return kAnyTime;
  int64_t most = kAnyTime;
  for (const auto &s : streams_) {
    if (s->over.load(std::memory_order_relaxed)) continue;
    short events = s->full.load(std::memory_order_relaxed) ? POLLOUT : 0;
    if (s->refused.load(std::memory_order_relaxed)) most = kAskAgain;  // more may stand behind it in the socket
    else events |= POLLIN;
    if (events != 0) fds.push_back({s->socket.get(), events, 0});
  }
  return most;
}

void TcpLink::before_sleep() {
  for (auto &s : streams_)
    if (!s->over.load(std::memory_order_relaxed)) s->set_low_water(std::clamp(s->payload_left(), 1u, kLowWater));
}

}  // namespace isthmus::link
