// The TCP link: several streams between two processes. Small frames keep their order on stream 0; the payload of a large one is cut
// into pieces, and each stream takes the next piece whenever its socket accepts it, so streams carry weight in proportion to their
// measured rate. Payloads go from and to the caller's memory; only headers and small payloads pass a buffer.
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
  struct Stream;
  bool write_stream(Stream &s, bool first);
  bool read_stream(Stream &s, FrameSink &sink);
  bool read_frames(Stream &s, FrameSink &sink);
  bool next_piece(Stream &s, bool first);
  void lose(Stream &s, std::string why);  // it has ended; what came by the others is still to be read
  void note_end(std::string why);
  void die(FrameSink &sink, const std::string &why);

  std::vector<std::unique_ptr<Stream>> streams_;
  OutQueue ordered_, bulk_;
  std::atomic<bool> dead_{false};
  int64_t first_end_ns_ = 0;
  int64_t end_ns_ = 0;  // when the first stream ended or the last byte came after that; 0: all are well
  std::string end_text_;
  std::atomic<uint32_t> writing_{0};  // streams with a piece half written
};

}  // namespace isthmus::link
