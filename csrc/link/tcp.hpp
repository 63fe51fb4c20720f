// The TCP link: several streams between two processes.
//
// Small frames keep their order on stream 0. The payload of a large frame is cut into pieces. Each stream takes the next piece whenever its
// socket accepts one, so the streams share the load in proportion to their measured rates. Payloads go from and to the caller's memory.
// Only headers and small payloads pass a buffer.
//
//   sending process                                     receiving process
//     post(), any thread: the frame waits in a queue
//     with the turn, progress():                          with the turn, progress():
//       stream 0: header, small payload  -------------->    TcpReader: header, sink.accept(), payload
//       stream 1: header, piece          -------------->    the same; pieces of one frame come in any order
//       stream 0: header, next piece     -------------->    sink.received() of each piece
//       a full socket: the other streams take the pieces
//     the last piece is written: finish()
//     without the turn, in poll(): POLLOUT where a stream is full, POLLIN where no frame is deferred
//
// A stream that ends does not end the link at once: the peer may have closed all streams, and what came by the others is still to be read.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/handles.hpp"
#include "link/frame.hpp"

namespace isthmus::link {

class TcpLink final : public Link {
 public:
  explicit TcpLink(std::vector<UniqueFd> sockets);  // connected, non-blocking
  ~TcpLink() override;
  void post(Outgoing &out) noexcept override;
  bool progress(FrameSink &sink) override;
  void cancel(uint32_t ours, uint32_t theirs, uint32_t epoch, uint32_t source) override;
  bool idle() const noexcept override;
  int64_t descriptors(std::vector<pollfd> &fds) const override;
  void before_sleep() override;
  const char *name() const noexcept override { return "tcp"; }
  size_t streams() const noexcept { return streams_.size(); }

 private:
  struct SocketStream;
  bool write_stream(SocketStream &s, bool first);
  bool read_stream(SocketStream &s, FrameSink &sink);
  bool read_frames(SocketStream &s, FrameSink &sink);
  bool next_piece(SocketStream &s, bool first);
  void lose(SocketStream &s, std::string why);  // the stream has ended; what came by the others is still to be read
  void note_end(std::string why);
  void die(FrameSink &sink, const std::string &why);

  std::vector<std::unique_ptr<SocketStream>> streams_;
  OutQueue ordered_, bulk_;
  std::atomic<bool> dead_{false};
  int64_t first_end_ns_ = 0;
  int64_t end_ns_ = 0;  // when a stream last ended, or when bytes last came after that; 0: all streams are well
  std::string end_text_;
  std::atomic<uint32_t> writing_{0};  // the streams that have a piece half written
};

}  // namespace isthmus::link
