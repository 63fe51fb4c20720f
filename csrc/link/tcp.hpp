// The TCP link: one stream between two processes, or several.
//
// Small frames keep their order on one stream. The payload of a large frame is cut into pieces; with several streams data is large from 16 KiB
// on. Each stream takes the next piece when its socket accepts one, as far as its measured rate allows (link/stream_book.hpp), or over a long way
// its window (link/stream_windows.hpp). Payloads go from and to the caller's memory.
// Only headers and small payloads pass a buffer.
//
//   sending process                                     receiving process
//     post(), any thread: the frame waits in a queue
//     with the turn, progress():                          with the turn, progress():
//       stream 0: header, small payload  -------------->    TcpReader: header, sink.accept(), payload
//       stream 1: header, piece          -------------->    the same; pieces of one frame come in any order
//       stream 0: header, next piece     -------------->    sink.received() of each piece
//       a full socket: the other streams take the pieces
//     one stream: the last piece is written: finish()
//     several: it is confirmed: finish()   <-----------    Got
//     several, over a long way: once nothing waits to be written it is copied: finish()
//     without the turn, in poll(): POLLOUT where a stream is full, POLLIN where no frame is deferred
//
// Where a link has several streams, some may be lost: StreamBook says what goes again, and by which. A link whose streams are all gone is
// broken. A stream that ends is read to its end first: the peer may have closed all streams, and what came before is still to be read.
//
// A stream whose other host is silent (link/stream_silence.hpp) is lost as well, while there is another one that answers. The two ends may
// take one stream each for silent, and be left with none. So a link that has lost a stream that way waits some time for a new connection.
//
// Where threads are there to help (link/hands.hpp), the large pieces of several streams are moved side by side:
//
//   the thread with the turn                            helpers
//     every stream: what is small is written and read, a large piece is begun and left
//     share():  the piece of a stream  ------------>      the piece of another
//               and of the next one    <------------      ...
//     every stream again: what has come or gone is counted, and the next pieces are begun
//
// A socket that is closed while notes are on their way to it resets its connection, and what its kernel had not sent, or had to send again, is lost.
// So a process that ends waits until the other hosts have everything (left()).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/handles.hpp"
#include "link/frame.hpp"
#include "link/hands.hpp"
#include "link/interface_doubt.hpp"
#include "link/stream_book.hpp"
#include "link/stream_news.hpp"
#include "link/stream_silence.hpp"
#include "link/stream_windows.hpp"
#include "link/tcp_reader.hpp"

namespace isthmus::link {

class TcpLink final : public Link {
 public:
  // `sockets`: connected, non-blocking; at most StreamBook::kMostStreams. `delay_ns`: how long the peer's kernel delays its answers at most; 0: it
  // has not said. `long_way_ns`: the least round trip, where it is so long that senders are not to wait for one. `hands`: who may help, or null;
  // outlives the link's use.
  explicit TcpLink(std::vector<UniqueFd> sockets, int64_t delay_ns = 0, int64_t long_way_ns = 0, Hands *hands = nullptr);
  ~TcpLink() override;
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  Left left() const noexcept override;
  int64_t descriptors(std::vector<pollfd> &fds) const override;
  void before_sleep() override;
  void let_go() noexcept override;
  const char *name() const noexcept override { return "tcp"; }

  StreamNews &news() noexcept { return news_; }
  bool broken() const noexcept { return dead_.load(std::memory_order_relaxed); }

 private:
  struct SocketStream;
  // What is large is moved along with the rest, or left for move_large(). Over: it is left, and nothing is begun but notes.
  enum class Large : uint8_t { Now, Later, Over };
  bool go_round(FrameSink &sink, Large large);
  bool write_stream(SocketStream &s, Large large = Large::Now);
  bool read_frames(SocketStream &s, FrameSink &sink, Large large);
  bool move_large();  // the large pieces that were left, of all streams. True: there may be more at once
  bool take_note(SocketStream &s, FrameSink &sink);
  bool next_piece(SocketStream &s);
  bool next_owed(SocketStream &s, Large large);
  bool release_senders() noexcept;  // over a long way: what has been sent is copied, and its senders are free
  void lose(SocketStream &s, const std::string &why);   // the stream's connection has ended
  void close(SocketStream &s, const std::string &why);  // the same, where the book knows already
  void take_offers();
  void look_for_silence();
  void die(FrameSink &sink, const std::string &why);

  const bool several_, long_way_;
  Hands *const hands_;  // null: nobody ever helps
  std::vector<std::unique_ptr<SocketStream>> streams_;
  StreamBook book_;
  HalfPayloads half_;
  StreamNews news_;
  InterfaceDoubt interfaces_;
  StreamWindows windows_;  // over a long way
  OutQueue ordered_, bulk_;
  std::atomic<uint64_t> bulk_bytes_{0};  // of bulk_, posted and not yet given to a stream
  std::atomic<bool> dead_{false};
  std::string end_text_;  // why a stream was lost or fell mute last
  struct {
    int64_t mute_ns = 0;     // since when no stream can be written, and nothing has come either; 0: one can
    int64_t looked_ns = 0;   // when it was last asked whether the peer's host answers
    int64_t gave_up_ns = 0;  // when either end took a stream for silent; 0: none was
  } when_;
  std::atomic<uint32_t> writing_{0};  // the streams that have a piece half written
  std::atomic<uint32_t> waiting_{0};  // pieces that are to be confirmed, and whose senders wait
  uint32_t kept_ = 0;                 // likewise, and whose senders are free: copies
  std::atomic<bool> asks_{false};     // something may be unanswered; read by sleepers
};

}  // namespace isthmus::link
