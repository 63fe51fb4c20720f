// The reading half of one TCP stream: a reader finds the frames in the bytes of the socket, and brings each payload to its place.
//
// A frame passes a reader in three steps:
//   1. The header is read into the reader's buffer. A small payload comes along with its header.
//   2. The sink says where the payload belongs, or drops the frame, or defers the frame to a later look.
//   3. The payload is copied out of the buffer. The rest of the payload is received straight at its place.
//
// The holder of the link's turn (link/frame.hpp) uses the reader, or has another thread use bring() meanwhile. Sleepers read deferred() without the turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "link/frame.hpp"

namespace isthmus::link {

// What one look at a stream has done so far.
struct Burst {
  size_t bytes = 0;             // received
  bool drained = false;         // the last read came back short: nothing more waits in the kernel
  bool moved = false;           // a frame has come to an end, or much was received
  uint32_t leave = UINT32_MAX;  // a payload of which so much is still in the socket is left there, for bring()
};

// The payloads that were half here when their streams were lost. The sink has accepted them and is not asked again: the frames come once more,
// whole, by another stream, and go to the same places. Frames are known by their headers.
class HalfPayloads {
 public:
  void keep(const FrameHeader &h, std::byte *to, bool taken) { kept_.push_back({h, to, taken}); }
  bool find(const FrameHeader &h, std::byte *&to, bool &taken) noexcept;  // and forgets it
  void cancel(uint32_t member, uint32_t epoch) noexcept;
  void clear() noexcept { kept_.clear(); }

 private:
  struct Half {
    FrameHeader header;
    std::byte *to;  // where the payload begins; nullptr: it is drained
    bool taken;
  };
  std::vector<Half> kept_;
};

class TcpReader {
 public:
  // `half`: of the link. Null: the link has one stream, and there are no notes.
  explicit TcpReader(HalfPayloads *half = nullptr) noexcept : half_(half) {}
  enum class Result : uint8_t {
    More,   // the step is done; the next one may be made at once
    Frame,  // the same, and the step has brought a frame to its end: header() says which
    Note,   // the same, and a note has come (link/stream_book.hpp): header() has it
    Wait,   // the socket is empty, or the sink has deferred the frame
    Ended,  // the peer has closed the stream, or the stream has failed: why() says which
    Fault,  // the peer breaks the protocol: why() says how
  };
  // Reads once into the buffer, or brings one frame to its end. `counted` rises by each frame that has come to its end.
  Result step(int socket, FrameSink &sink, std::atomic<uint64_t> &counted, Burst &burst);
  std::string why() const;
  const FrameHeader &header() const noexcept { return header_; }

  // Receives what is here of the payload in work, without a step's other parts: no sink is asked or told. The next step goes on where this ends.
  void bring(int socket) noexcept;

  // The stream is lost, and its frames will come by another one. The reader is as new, for the stream's next connection.
  void lose();
  // The rest of a half-read frame of this membership is drained: its memory is the user's again.
  void cancel(uint32_t member, uint32_t epoch) noexcept;
  // The link has died: the frame in work is forgotten.
  void forget() noexcept;

  // Whether the sink has deferred the frame at the front. Sleepers ask too.
  bool deferred() const noexcept { return deferred_.load(std::memory_order_relaxed); }
  // Bytes of the payload in work that are still in the socket; 0: no payload is in work.
  uint32_t payload_left() const noexcept { return have_header_ && accepted_ && begin_ == end_ ? left_ : 0; }
  // The payload in work is here, and the frame is to be told.
  bool complete() const noexcept { return have_header_ && accepted_ && left_ == 0; }
  // Likewise payload_left(), where it goes straight to its place and the stream has not ended, as far as is known.
  uint32_t to_bring() const noexcept { return to_ && !ended_ ? payload_left() : 0; }
  // The socket counts as readable from so many bytes on (SO_RCVLOWAT).
  void set_low_water(int socket, uint32_t bytes) noexcept;
  uint32_t low_water() const noexcept { return low_water_; }

 private:
  // One read takes a header and a small payload. Larger payloads go past the buffer.
  static constexpr size_t kBuffer = sizeof(FrameHeader) + 8 * 1024;

  Result read_header(int socket, Burst &burst);
  Result offer(FrameSink &sink, Burst &burst);
  Result read_payload(int socket, Burst &burst) noexcept;
  // Receives up to `want` bytes; `got` says how many came.
  Result receive(int socket, std::byte *to, size_t want, size_t &got) noexcept;

  HalfPayloads *const half_;
  std::byte buffer_[kBuffer];
  size_t begin_ = 0, end_ = 0;  // the bytes of the buffer that nobody has taken yet
  FrameHeader header_;
  std::byte *place_ = nullptr;  // where the payload begins
  std::byte *to_ = nullptr;     // where the rest of the payload goes; nullptr while left_ > 0: the rest is drained
  uint32_t left_ = 0;           // bytes of the payload that have not come to their place
  bool have_header_ = false, accepted_ = false, taken_ = false;
  int64_t since_ = 0;  // when the sink first deferred the frame; 0: never
  std::atomic<bool> deferred_{false};
  uint32_t low_water_ = 1;
  const char *fault_ = nullptr;  // how the peer breaks the protocol
  bool ended_ = false;           // the stream has
  int error_ = 0;                // it has failed: errno. 0: the peer has closed it
};

}  // namespace isthmus::link
