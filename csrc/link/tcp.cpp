#include "link/tcp.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "link/tcp_reader.hpp"

namespace isthmus::link {
namespace {

constexpr uint64_t kBulk = 64 * 1024;    // bytes; larger payloads may leave stream 0
constexpr uint32_t kPiece = 512 * 1024;  // bytes of a bulk payload; the header's 64 are noise beside them
constexpr size_t kBurst =
    2 * 1024 * 1024;  // bytes of one stream and direction in one progress(), so both directions get their time

constexpr size_t kWorth = 32 * 1024;        // less than this of a piece is no reason to look again at once
constexpr uint32_t kLowWater = 128 * 1024;  // a sleeper within a payload is woken for so much of it, or for its end
constexpr int64_t kAskAgain = 250'000;      // a deferred frame is offered again after so long

constexpr int64_t kOthers = 500'000'000;      // once a stream has ended, the others may be silent so long
constexpr int64_t kLongest = 10'000'000'000;  // and go on so long at all

}  // namespace

struct TcpLink::SocketStream {
  UniqueFd socket;
  std::atomic<bool> over{false};  // nothing more comes from the stream; read by sleepers
  bool mute = false;              // nothing can be written to the stream any more
  TcpReader in;
  // The piece that is being written.
  bool writing = false;
  Outgoing *out = nullptr;  // nullptr while `writing`: the operation was cancelled, and owns nothing here
  FrameHeader header;
  const std::byte *data = nullptr;
  uint64_t sent = 0;              // of header and payload
  std::vector<std::byte> rest;    // of a cancelled operation: a copy of what is still to be sent, so the frame stays whole
  std::atomic<bool> full{false};  // the last write would have blocked; read by sleepers
};

TcpLink::TcpLink(std::vector<UniqueFd> sockets) {
  for (auto &fd : sockets) {
    streams_.push_back(std::make_unique<SocketStream>());
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

bool TcpLink::next_piece(SocketStream &s, bool first) {
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

bool TcpLink::write_stream(SocketStream &s, bool first) {
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
      s.mute = true;  // what the peer sent before this is still to be read
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

bool TcpLink::read_stream(SocketStream &s, FrameSink &sink) {
  const bool moved = read_frames(s, sink);
  // A thread may sleep on the socket while this thread reads. What is left of the payload must be enough to wake the sleeper.
  if (const uint32_t left = std::max(s.in.payload_left(), 1u); s.in.low_water() > left)
    s.in.set_low_water(s.socket.get(), left);
  return moved;
}

bool TcpLink::read_frames(SocketStream &s, FrameSink &sink) {
  Burst burst;
  auto result = TcpReader::Result::More;
  while (result == TcpReader::Result::More && burst.bytes < kBurst)
    result = s.in.step(s.socket.get(), sink, bytes_received, burst);
  if (result == TcpReader::Result::Ended) lose(s, s.in.why());
  if (result == TcpReader::Result::Fault) die(sink, s.in.why());
  return burst.moved;
}

bool TcpLink::progress(FrameSink &sink) {
  if (dead_.load(std::memory_order_relaxed)) return false;
  bool moved = false;
  for (size_t i = 0; i < streams_.size(); ++i)
    if (!streams_[i]->over && !streams_[i]->mute) moved |= write_stream(*streams_[i], i == 0);
  for (size_t i = 0; i < streams_.size() && !dead_.load(std::memory_order_relaxed); ++i)
    if (!streams_[i]->over) moved |= read_stream(*streams_[i], sink);
  if (end_ns_ == 0 || dead_.load(std::memory_order_relaxed)) return moved;
  // A peer that has said all closes all streams at once, but they are read one after another.
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

void TcpLink::lose(SocketStream &s, std::string why) {
  s.over = true;
  note_end(std::move(why));
}

void TcpLink::cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) {
  for (auto &s : streams_) {
    if (s->writing && s->out && s->header.member == theirs && s->header.epoch == epoch && s->header.source == source) {
      Outgoing *out = s->out;
      s->out = nullptr;
      if (s->sent == 0) {  // nothing of the piece has left
        s->writing = false;
        writing_.fetch_sub(1, std::memory_order_relaxed);
      } else {
        // The user has the buffer back, and the peer must not take what the user writes next for data of the frame: the abort goes another
        // way and may come later. So the rest is copied: at most one piece, and never in an operation that succeeds.
        const uint64_t done = s->sent > sizeof(FrameHeader) ? s->sent - sizeof(FrameHeader) : 0;
        s->rest.assign(s->data + done, s->data + s->header.bytes);
        s->data = s->rest.data() - done;
      }
      if (--out->pieces == 0 && out->cut == out->header.total) finish(*out);
    }
    s->in.cancel(ours, epoch);
  }
  for (OutQueue *queue : {&ordered_, &bulk_})
    queue->remove_if(
        [&](const Outgoing &o) { return o.header.member == theirs && o.header.epoch == epoch && o.header.source == source; },
        [](Outgoing &o) { finish(o); });
}

void TcpLink::die(FrameSink &sink, const std::string &why) {
  if (dead_.exchange(true)) return;
  // What was not sent has not succeeded, so nothing is finished here. It waits in the queues for the cancel() of the members that fail.
  for (auto &s : streams_) {
    if (s->writing) {
      s->writing = false;
      writing_.fetch_sub(1, std::memory_order_relaxed);
      if (Outgoing *out = std::exchange(s->out, nullptr); out && --out->pieces == 0 && out->cut == out->header.total)
        bulk_.push(*out);
    }
    s->in.forget();
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
    if (s->in.deferred()) most = kAskAgain;  // more may stand behind the deferred frame in the socket
    else events |= POLLIN;
    if (events != 0) fds.push_back({s->socket.get(), events, 0});
  }
  return most;
}

void TcpLink::before_sleep() {
  for (auto &s : streams_)
    if (!s->over.load(std::memory_order_relaxed))
      s->in.set_low_water(s->socket.get(), std::clamp(s->in.payload_left(), 1u, kLowWater));
}

}  // namespace isthmus::link
