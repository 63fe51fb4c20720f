#include "link/tcp.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/assert.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "link/tcp_stream.hpp"
#include "net/socket.hpp"

namespace isthmus::link {
namespace {

constexpr uint64_t kBulk = 64 * 1024;    // bytes; of one stream: larger data lets smaller frames go first
constexpr uint32_t kPiece = 512 * 1024;  // bytes of a bulk payload; the header's 64 are noise beside them
constexpr size_t kBurst =
    2 * 1024 * 1024;  // bytes of one stream and direction in one round, so both directions get their time

constexpr int kRounds = kBurst / kPiece;  // where several threads move large pieces; of these each moves one in a round

constexpr size_t kWorth = 32 * 1024;        // less than this of a piece is no reason to look again at once
constexpr uint32_t kLowWater = 128 * 1024;  // a sleeper within a payload is woken for so much of it, or for its end
constexpr int64_t kAskAgain = 250'000;      // a deferred frame is offered again after so long

constexpr uint64_t kRoom = 4 * 1024 * 1024;  // bytes of a stream: as much as a kernel mostly lets it have under way

constexpr int64_t kMute =
    500'000'000;  // once no stream can be written, what has come may be read for so long without a byte
// Where a stream was taken for silent, and has not come again: a link that has lost the last one waits for a new connection for so long.
constexpr int64_t kComesAgain = 3'000'000'000;

// A piece of it has come, or nobody sends it any more.
void confirmed(Outgoing &out) noexcept {
  if (--out.pieces == 0 && out.cut == out.header.total) finish(out);
}

}  // namespace

TcpLink::TcpLink(std::vector<UniqueFd> sockets, int64_t delay_ns, int64_t long_way_ns, Hands *hands)
    : several_(sockets.size() > 1),
      long_way_(several_ && long_way_ns > 0),
      hands_(several_ ? hands : nullptr),
      book_(sockets.size(), long_way_ ? kRoom : 0),
      news_(sockets.size()),
      interfaces_(sockets.size()),
      windows_(long_way_ns) {
  ISTHMUS_ASSERT(sockets.size() <= StreamBook::kMostStreams, "the book has a bit for each stream");
  for (auto &fd : sockets) {
    streams_.push_back(std::make_unique<SocketStream>(several_ ? &half_ : nullptr, delay_ns));
    streams_.back()->index = streams_.size() - 1;
    streams_.back()->connect(std::move(fd));
  }
}

TcpLink::~TcpLink() {
  // A socket that is closed with unread bytes resets the connection, and the peer may lose what was sent last. Notes may be unread here.
  if (several_)
    for (auto &s : streams_) {
      std::byte rest[4096];
      for (int reads = 0; reads < 64 && !s->over && ::recv(s->socket.get(), rest, sizeof rest, MSG_DONTWAIT) > 0;) ++reads;
    }
}

void TcpLink::post(Outgoing &out) noexcept {
  out.cut = 0;
  out.pieces = 0;
  const bool bulk = several_ ? any_order(out.header) : is_data(out.header) && out.header.total > kBulk;
  if (bulk) bulk_bytes_.fetch_add(out.header.total, std::memory_order_relaxed);
  (bulk ? bulk_ : ordered_).push(out);
}

// ---- writing -------------------------------------------------------------------------------------------------------------------------

// A note, or a piece that was given to a stream that is lost.
bool TcpLink::next_owed(SocketStream &s, Large large) {
  FrameHeader note;
  if (book_.next_note(s.index, note)) {
    s.begin(note, nullptr, nullptr, writing_);
    s.note = true;
    return true;
  }
  if (large == Large::Over || !book_.has_room(s.index)) return false;
  const OwedPiece *again = book_.again(s.index, now_ns());
  if (again) s.begin(again->header, again->data, again->out, writing_);
  return again != nullptr;
}

bool TcpLink::next_piece(SocketStream &s) {
  bool ordered = true;
  if (several_) {
    if (next_owed(s, Large::Now)) return true;
    if (!book_.has_room(s.index)) return false;
    ordered = book_.takes_ordered(s.index);
  }
  ordered = ordered && !ordered_.empty();
  OutQueue &queue = ordered ? ordered_ : bulk_;
  Outgoing *out = queue.front();
  if (!out) return false;
  OwedPiece piece{out->header, out->data + out->cut, out, 0, ordered, false};
  FrameHeader &h = piece.header;
  const bool bare = is_bare(h.kind);
  const uint64_t rest = bare ? 0 : h.total - out->cut;
  h.offset = bare ? 0 : out->cut;
  h.bytes = static_cast<uint32_t>(std::min<uint64_t>(rest, ordered ? kMaxPayload : kPiece));
  const int64_t now = several_ ? now_ns() : 0;
  if (several_ && !ordered && !long_way_) {
    const uint64_t waiting = bulk_bytes_.load(std::memory_order_relaxed);
    if (!book_.takes_bulk(s.index, h.bytes, std::max<uint64_t>(waiting, h.bytes), now)) return false;
  }
  if (long_way_ && !ordered) {
    const auto may = [&](size_t o) {  // a socket that is full may stay so: the peer need not read it now
      const SocketStream &other = *streams_[o];
      if (other.over.load(std::memory_order_relaxed) || other.full.load(std::memory_order_relaxed)) return false;
      return book_.has_room(o) && (ordered_.empty() || !book_.takes_ordered(o));  // those go first
    };
    if (!windows_.takes(s.index, h.bytes, streams_.size(), may)) return false;
  }
  // Where a copy is to be had the sender need not wait until the data has come.
  if (several_ && !ordered) piece.ordered = book_.may_copy(s.index, h);
  const bool copied = several_ && (is_quiet(h) || (!ordered && piece.ordered));
  if (copied) {
    piece.data = book_.copy(piece.data, h.bytes, piece.copied);
    if (h.bytes != 0 && !piece.data) return false;
    piece.out = nullptr;
  }
  out->cut = bare ? h.total : out->cut + h.bytes;
  if (bare || out->cut == h.total) queue.pop();
  if (!ordered) bulk_bytes_.fetch_sub(h.bytes, std::memory_order_relaxed);
  if (several_) book_.give(s.index, piece, now);
  if (long_way_) windows_.gave(s.index, h.bytes);
  s.begin(h, piece.data, piece.out, writing_);
  if (copied) {
    finish(*out);  // the book has what may have to go again
  } else {
    ++out->pieces;
    if (several_) waiting_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

bool TcpLink::release_senders() noexcept {
  if (waiting_.load(std::memory_order_relaxed) == 0 || !ordered_.empty() || !bulk_.empty()) return false;
  bool released = false;
  for (auto &s : streams_) {
    if (s->writing) continue;  // it reads what the last piece that it owes has
    book_.copy_owed(s->index, [&](const OwedPiece &p) {
      released = true;
      ++kept_;
      waiting_.fetch_sub(1, std::memory_order_relaxed);
      confirmed(*p.out);
    });
  }
  return released;
}

bool TcpLink::SocketStream::write() noexcept {
  iovec parts[2];
  int count = 0;
  if (sent < sizeof(FrameHeader))
    parts[count++] = {reinterpret_cast<std::byte *>(&header) + sent, sizeof(FrameHeader) - sent};
  const uint64_t done = sent > sizeof(FrameHeader) ? sent - sizeof(FrameHeader) : 0;
  if (done < header.bytes) parts[count++] = {const_cast<std::byte *>(data + done), header.bytes - done};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t n;
  do n = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) failed = errno;
  if (n >= 0) sent += static_cast<uint64_t>(n);
  full.store(n < 0 && failed == 0, std::memory_order_relaxed);
  return n >= 0;
}

bool TcpLink::write_stream(SocketStream &s, Large large) {
  bool moved = false;
  size_t burst = 0;
  if (!s.writing) s.full.store(false, std::memory_order_relaxed);
  const auto begins = [&] { return large == Large::Over ? several_ && next_owed(s, large) : next_piece(s); };
  while (burst < kBurst && (s.writing || begins())) {
    if (large != Large::Now && s.large_out()) break;
    if (const uint64_t before = s.sent; s.unsent() != 0) {
      if (s.failed != 0 || !s.write()) break;
      asks_.store(several_, std::memory_order_relaxed);
      burst += s.sent - before;
      if (!s.note) {
        moved = moved || burst >= kWorth || s.unsent() == 0;
        bytes_sent.fetch_add(s.sent - before, std::memory_order_relaxed);
      }
      if (s.unsent() != 0) continue;
    }
    Outgoing *const out = s.out;
    s.stop(writing_);
    if (out && !several_) confirmed(*out);
  }
  if (s.failed != 0 && !s.mute) {
    s.mute = true;  // what the peer sent before this is still to be read
    if (several_) book_.mute(s.index);
    s.why = end_text_ = system_text("send", s.failed);
  }
  return moved;
}

// ---- reading -------------------------------------------------------------------------------------------------------------------------

bool TcpLink::read_frames(SocketStream &s, FrameSink &sink, Large large) {
  Burst burst;
  if (large != Large::Now && !s.mute) burst.leave = SocketStream::kLarge;
  bool moved = false, note = false, frame = false;
  auto result = TcpReader::Result::More;
  while (result == TcpReader::Result::More && burst.bytes < kBurst) {
    result = s.in.step(s.socket.get(), sink, bytes_received, burst);
    if (result == TcpReader::Result::Frame) {
      frame = true;
      result = TcpReader::Result::More;
      if (several_ && !book_.received(s.index, s.in.header()))
        return die(sink, "protocol error: a frame before its time"), true;
    } else if (result == TcpReader::Result::Note) {
      note = true;
      moved |= take_note(s, sink);
      if (dead_.load(std::memory_order_relaxed) || s.over) return moved;
      result = TcpReader::Result::More;
    }
  }
  if (result == TcpReader::Result::Ended) lose(s, s.mute ? s.why : s.in.why());
  if (result == TcpReader::Result::Fault) die(sink, s.in.why());
  // A connection that takes nothing brings nothing new either. A deferred frame hides what stands behind it.
  if (result == TcpReader::Result::Wait && s.mute && several_ && !s.in.deferred()) lose(s, s.why);
  return moved || (burst.moved && (!note || frame || s.in.payload_left() != 0));
}

bool TcpLink::take_note(SocketStream &s, FrameSink &sink) {
  bool moved = false;
  const FrameHeader note = s.in.header();
  const auto heard = book_.heard(s.index, note, now_ns(), [&](const OwedPiece &p) {
    moved = true;
    if (!p.out) return void(--kept_);
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    confirmed(*p.out);
  });
  if (heard == StreamBook::Heard::Fault) die(sink, "protocol error: the peer says that more has come than was sent");
  if (heard == StreamBook::Heard::Ended) {
    when_.gave_up_ns = now_ns();
    close(*streams_[note.slot], "the peer has lost it");
  }
  return moved;
}

// Every stream is written and read once.
bool TcpLink::go_round(FrameSink &sink, Large large) {
  bool moved = false;
  for (auto &s : streams_)
    if (!s->over && !s->mute) moved |= write_stream(*s, large);
  for (auto &s : streams_) {
    if (dead_.load(std::memory_order_relaxed)) break;
    if (s->over || (large == Large::Over && !s->in.complete() && !s->mute)) continue;
    moved |= read_frames(*s, sink, large);
    if (!s->over) s->keep_awake();
  }
  return moved;
}

bool TcpLink::progress(FrameSink &sink) {
  if (dead_.load(std::memory_order_relaxed)) return false;
  if (news_.offered()) take_offers();
  bool moved = false;
  if (long_way_ && !bulk_.empty()) {
    windows_.look();
    for (auto &s : streams_)
      if (!s->over) windows_.see(s->index, net::window(s->socket.get()));
    windows_.looked(now_ns());
  }
  const Large large = hands_ && hands_->any() ? Large::Later : Large::Now;
  bool more = true;
  for (int rounds = 0; more && rounds < kRounds; ++rounds) {
    moved |= go_round(sink, large);
    if (dead_.load(std::memory_order_relaxed)) return moved;
    more = large == Large::Later && move_large();
    moved |= more;
  }
  if (more) go_round(sink, Large::Over);  // nobody may drive the link for a while
  if (dead_.load(std::memory_order_relaxed)) return moved;
  if (several_) {  // what has come is confirmed before a thread sleeps
    for (auto &s : streams_)
      if (!s->over && !s->mute && !s->writing && book_.to_tell(s->index))
        moved |= write_stream(*s, large == Large::Now ? Large::Now : Large::Over);
    look_for_silence();
    if (long_way_) moved |= release_senders();
  }
  const auto ends = [](const auto &s) { return s->over || s->mute; };
  if (!std::all_of(streams_.begin(), streams_.end(), ends)) {
    when_.mute_ns = 0;
    if (when_.gave_up_ns != 0 && std::none_of(streams_.begin(), streams_.end(), ends)) when_.gave_up_ns = 0;
    return moved;
  }
  // A peer that has said all closes all streams at once, but they are read one after another.
  const bool all = std::all_of(streams_.begin(), streams_.end(), [](const auto &s) { return s->over.load(); });
  const int64_t now = now_ns();
  if (moved || when_.mute_ns == 0) when_.mute_ns = now;
  if (when_.gave_up_ns != 0 && now - std::max(when_.gave_up_ns, when_.mute_ns) < kComesAgain)
    asks_.store(true, std::memory_order_relaxed);  // a sleeper is to look again
  else if (all || now - when_.mute_ns > kMute) die(sink, end_text_);
  return moved;
}

// ---- ends ----------------------------------------------------------------------------------------------------------------------------

void TcpLink::cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) {
  const auto match = [&](const FrameHeader &h) { return h.member == theirs && h.epoch == epoch && h.source == source; };
  for (auto &s : streams_) {
    if (s->writing && s->out && match(s->header)) {
      Outgoing *out = std::exchange(s->out, nullptr);
      if (s->sent == 0 && !several_) {  // nothing of the piece has left
        s->stop(writing_);
      } else if (s->unsent() != 0) {
        // The user has the buffer back, and the peer must not take what the user writes next for data of the frame: the abort goes another
        // way and may come later. So the rest is copied: at most one piece, and never in an operation that succeeds.
        const uint64_t done = s->sent > sizeof(FrameHeader) ? s->sent - sizeof(FrameHeader) : 0;
        s->rest.assign(s->data + done, s->data + s->header.bytes);
        s->data = s->rest.data() - done;
      }
      if (!several_) confirmed(*out);
    }
    s->in.cancel(ours, epoch);
  }
  half_.cancel(ours, epoch);
  book_.cancel([&](const OwedPiece &p) { return match(p.header); },
               [&](const OwedPiece &p) {
                 waiting_.fetch_sub(1, std::memory_order_relaxed);
                 confirmed(*p.out);
               });
  for (OutQueue *queue : {&ordered_, &bulk_})
    queue->remove_if([&](const Outgoing &o) { return match(o.header); },
                     [&](Outgoing &o) {
                       if (queue == &bulk_) bulk_bytes_.fetch_sub(o.header.total - o.cut, std::memory_order_relaxed);
                       finish(o);
                     });
}

void TcpLink::die(FrameSink &sink, const std::string &why) {
  if (dead_.exchange(true)) return;
  // What was not sent has not succeeded, so nothing is finished here. It waits in the queues for the cancel() of the members that fail.
  const auto keep = [&](Outgoing &out) {
    if (--out.pieces == 0 && out.cut == out.header.total) bulk_.push(out);
  };
  for (auto &s : streams_) {
    if (s->writing) {
      Outgoing *out = s->out;
      s->stop(writing_);
      if (out && !several_) keep(*out);
    }
    s->in.forget();
  }
  half_.clear();
  kept_ = 0;
  book_.cancel([](const OwedPiece &) { return true; },
               [&](const OwedPiece &p) {
                 waiting_.fetch_sub(1, std::memory_order_relaxed);
                 keep(*p.out);
               });
  sink.broken(why);
}

void TcpLink::let_go() noexcept {
  dead_.store(true);
  kept_ = 0;
  for (auto &s : streams_) {
    s->over.store(true, std::memory_order_release);
    s->mute = true;
    s->socket.reset();
    s->rest = {};
  }
  if (waiting_.load(std::memory_order_relaxed) == 0) book_ = StreamBook(streams_.size());  // with the room for copies
}

Link::Left TcpLink::left() const noexcept {
  Left left;
  left.any = !ordered_.empty() || !bulk_.empty() || writing_.load(std::memory_order_relaxed) != 0;
  if (dead_.load(std::memory_order_relaxed)) return left;
  StreamBook::Owes owes;
  if (several_) {
    owes = book_.owes();
    left.any = left.any || waiting_.load(std::memory_order_relaxed) != 0 || kept_ != 0 || owes.again;
  }
  for (const auto &s : streams_) {
    if (s->over.load(std::memory_order_relaxed)) continue;
    net::answer_now(s->socket.get());  // the peer may end as well
    // What the other host's kernel has is safe, also frames that are confirmed at leisure.
    const net::Window window = net::window(s->socket.get());
    left.through += window.acknowledged;
    const bool to_tell = several_ && book_.to_tell(s->index);
    left.any = left.any || (s->mute ? owes.any : window.under_way > 0 || to_tell);
  }
  return left;
}

int64_t TcpLink::descriptors(std::vector<pollfd> &fds) const {
  if (dead_.load(std::memory_order_relaxed)) return kAnyTime;
  int64_t most = asks_.load(std::memory_order_relaxed) ? StreamSilence::kLookNs : kAnyTime;
  for (const auto &s : streams_) {
    if (s->over.load(std::memory_order_acquire)) continue;
    short events = s->full.load(std::memory_order_relaxed) ? POLLOUT : 0;
    if (s->in.deferred()) most = kAskAgain;  // more may stand behind the deferred frame in the socket
    else events |= POLLIN;
    if (events != 0) fds.push_back({s->fd.load(std::memory_order_relaxed), events, 0});
  }
  return most;
}

void TcpLink::before_sleep() {
  for (auto &s : streams_)
    if (!s->over.load(std::memory_order_relaxed))
      s->in.set_low_water(s->socket.get(), std::clamp(s->in.payload_left(), 1u, kLowWater));
}

}  // namespace isthmus::link
