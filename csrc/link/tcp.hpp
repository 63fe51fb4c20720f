// The TCP link: one stream between two processes, or several.
//
// Small frames keep their order on one stream. The payload of a large frame is cut into pieces; with several streams data is large from 16 KiB
// on. Each stream takes the next piece when its socket accepts one, as far as its measured rate allows (link/stream_book.hpp). Payloads go from and to the caller's memory.
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
//     without the turn, in poll(): POLLOUT where a stream is full, POLLIN where no frame is deferred
//
// Where a link has several streams, some may be lost: StreamBook says what goes again, and by which. A link whose streams are all gone is
// broken. A stream that ends is read to its end first: the peer may have closed all streams, and what came before is still to be read.
//
// A stream whose other host is silent (link/stream_silence.hpp) is lost as well, while there is another one that answers. The two ends may
// take one stream each for silent, and be left with none. So a link that has lost a stream that way waits some time for a new connection.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/handles.hpp"
#include "link/frame.hpp"
#include "link/interface_doubt.hpp"
#include "link/stream_book.hpp"
#include "link/stream_news.hpp"
#include "link/stream_silence.hpp"
#include "link/tcp_reader.hpp"

namespace isthmus::link {

class TcpLink final : public Link {
 public:
  // `sockets`: connected, non-blocking; at most StreamBook::kMostStreams. `delay_ns`: how long the peer's kernel delays its answers at most; 0: it
  // has not said.
  explicit TcpLink(std::vector<UniqueFd> sockets, int64_t delay_ns = 0);
  ~TcpLink() override;
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  bool idle() const noexcept override;
  int64_t descriptors(std::vector<pollfd> &fds) const override;
  void before_sleep() override;
  void let_go() noexcept override;
  const char *name() const noexcept override { return "tcp"; }
  size_t streams() const noexcept { return streams_.size(); }

  StreamNews &news() noexcept { return news_; }
  bool broken() const noexcept { return dead_.load(std::memory_order_relaxed); }

 private:
  struct SocketStream;
  bool write_stream(SocketStream &s);
  bool read_stream(SocketStream &s, FrameSink &sink);
  bool read_frames(SocketStream &s, FrameSink &sink);
  bool take_note(SocketStream &s, FrameSink &sink);
  bool next_piece(SocketStream &s);
  bool next_owed(SocketStream &s);
  void confirmed(Outgoing &out) noexcept;               // a piece of it has come, or nobody sends it any more
  void lose(SocketStream &s, const std::string &why);   // the stream's connection has ended
  void close(SocketStream &s, const std::string &why);  // the same, where the book knows already
  void take_offers();
  void look_for_silence();
  void die(FrameSink &sink, const std::string &why);

  const bool several_;
  std::vector<std::unique_ptr<SocketStream>> streams_;
  StreamBook book_;
  HalfPayloads half_;
  StreamNews news_;
  InterfaceDoubt interfaces_;
  OutQueue ordered_, bulk_;
  std::atomic<uint64_t> bulk_bytes_{0};  // of bulk_, posted and not yet given to a stream
  std::atomic<bool> dead_{false};
  std::string end_text_;              // why a stream was lost or fell mute last
  int64_t mute_ns_ = 0;               // since when no stream can be written, and nothing has come either; 0: one can
  int64_t looked_ns_ = 0;             // when it was last asked whether the peer's host answers
  int64_t gave_up_ns_ = 0;            // when either end took a stream for silent; 0: none was
  std::atomic<uint32_t> writing_{0};  // the streams that have a piece half written
  std::atomic<uint32_t> waiting_{0};  // pieces that are to be confirmed, and whose senders wait
  std::atomic<bool> asks_{false};     // something may be unanswered; read by sleepers
};

}  // namespace isthmus::link
