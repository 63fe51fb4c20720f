// One stream of a TCP link: its socket, what is being read, and the piece that is being written. Internal to the link (tcp.cpp, tcp_large.cpp, tcp_lost.cpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "link/tcp.hpp"
#include "net/socket.hpp"

namespace isthmus::link {

struct TcpLink::SocketStream {
  static constexpr uint32_t kLarge = 64 * 1024;  // bytes
  size_t index = 0;
  UniqueFd socket;
  std::atomic<int> fd{-1};        // the same, for sleepers
  std::atomic<bool> over{false};  // nothing more comes from the stream; read by sleepers
  bool mute = false;              // nothing can be written to the stream any more
  bool busy = true;               // when its large pieces were moved last, that was much
  std::string why;                // it is mute
  StreamSilence silence;
  TcpReader in;
  // The piece that is being written.
  bool writing = false;
  bool note = false;        // it is one (link/stream_book.hpp)
  Outgoing *out = nullptr;  // whose the piece is; nullptr: the operation was cancelled, or has ended, and owns nothing here
  FrameHeader header;
  const std::byte *data = nullptr;
  uint64_t sent = 0;              // of header and payload
  std::vector<std::byte> rest;    // of a cancelled operation: a copy of what is still to be sent, so the frame stays whole
  std::atomic<bool> full{false};  // the last write would have blocked; read by sleepers
  int failed = 0;                 // it has failed: errno

  SocketStream(HalfPayloads *half, int64_t delay_ns) : silence(delay_ns), in(half) {}
  void connect(UniqueFd connection) {
    fd.store(connection.get(), std::memory_order_relaxed);
    constexpr int kUnsent = 256 * 1024;  // bytes in the kernel that it has not sent: enough until the writer is awake
    net::limit_unsent(connection.get(), kUnsent);
    socket = std::move(connection);
    mute = false;
    failed = 0;
    silence.begin(now_ns());
    full.store(false, std::memory_order_relaxed);
    over.store(false, std::memory_order_release);
  }
  // Bytes of the piece and its header that the socket has not taken.
  uint64_t unsent() const noexcept { return sizeof(FrameHeader) + header.bytes - sent; }
  // Writes once. False: the socket takes nothing more, and `full` or `failed` says why.
  bool write() noexcept;
  // What is large enough to be left for move_large(): of the piece that is being written, and of the payload that is being read.
  bool large_out() const noexcept { return writing && !note && !mute && failed == 0 && unsent() >= kLarge; }
  bool large_in() const noexcept { return !over.load(std::memory_order_relaxed) && !mute && in.to_bring() >= kLarge; }
  // Writes and reads until the socket has had enough, the piece is written, and the payload is here.
  void move_large() noexcept;
  // A thread may sleep on the socket while this thread reads. What is left of the payload must be enough to wake the sleeper.
  void keep_awake() noexcept {
    if (const uint32_t left = std::max(in.payload_left(), 1u); in.low_water() > left) in.set_low_water(socket.get(), left);
  }
  // `count`: of the streams that have a piece half written.
  void begin(const FrameHeader &h, const std::byte *bytes, Outgoing *whose, std::atomic<uint32_t> &count) noexcept {
    header = h;
    data = bytes;
    out = whose;
    sent = 0;
    note = false;
    writing = true;
    count.fetch_add(1, std::memory_order_relaxed);
  }
  void stop(std::atomic<uint32_t> &count) noexcept {
    writing = false;
    out = nullptr;
    rest = {};
    count.fetch_sub(1, std::memory_order_relaxed);
  }
};

}  // namespace isthmus::link
