#include "link/tcp_reader.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/copy.hpp"
#include "base/error.hpp"
#include "link/stream_book.hpp"

namespace isthmus::link {
namespace {

constexpr size_t kWorth = 32 * 1024;  // less than this of a payload is no reason to look again at once

}  // namespace

bool HalfPayloads::find(const FrameHeader &h, std::byte *&to, bool &taken) noexcept {
  const auto same = [&](const Half &half) { return std::memcmp(&half.header, &h, sizeof h) == 0; };
  const auto at = std::find_if(kept_.begin(), kept_.end(), same);
  if (at == kept_.end()) return false;
  to = at->to;
  taken = at->taken;
  kept_.erase(at);
  return true;
}

void HalfPayloads::cancel(uint32_t member, uint32_t epoch) noexcept {
  for (Half &half : kept_)
    if (half.header.member == member && half.header.epoch == epoch) {
      half.to = nullptr;
      half.taken = false;
    }
}

TcpReader::Result TcpReader::step(int socket, FrameSink &sink, std::atomic<uint64_t> &counted, Burst &burst) {
  if (!have_header_) {
    if (end_ - begin_ < sizeof(FrameHeader)) return read_header(socket, burst);
    std::memcpy(&header_, buffer_ + begin_, sizeof header_);
    begin_ += sizeof header_;
    if (half_ && is_note(header_)) return Result::Note;
    fault_ = frame_fault(header_);
    if (fault_) return Result::Fault;
    have_header_ = true;
    accepted_ = false;
    since_ = 0;
  }
  if (!accepted_)
    if (const Result r = offer(sink, burst); r != Result::More) return r;
  if (const Result r = read_payload(socket, burst); r != Result::More) return r;
  counted.fetch_add(header_.bytes + sizeof(FrameHeader), std::memory_order_relaxed);
  have_header_ = false;
  burst.moved = true;
  if (taken_) sink.received(header_);
  return Result::Frame;
}

TcpReader::Result TcpReader::read_header(int socket, Burst &burst) {
  if (burst.drained) return Result::Wait;
  if (begin_ > 0) {
    std::memmove(buffer_, buffer_ + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const size_t room = kBuffer - end_;
  size_t got = 0;
  if (const Result r = receive(socket, buffer_ + end_, room, got); r != Result::More) return r;
  burst.drained = got < room;
  end_ += got;
  burst.bytes += got;
  burst.moved = true;
  return Result::More;
}

TcpReader::Result TcpReader::offer(FrameSink &sink, Burst &burst) {
  if (half_ && half_->find(header_, to_, taken_)) {
    accepted_ = true;
    left_ = header_.bytes;
    place_ = to_;
    burst.moved = true;
    return Result::More;
  }
  const Accept answer = sink.accept(header_, since_, to_);
  deferred_.store(answer == Accept::Defer, std::memory_order_relaxed);
  if (answer == Accept::Defer) {
    if (since_ == 0) since_ = now_ns();
    return Result::Wait;
  }
  accepted_ = true;
  left_ = header_.bytes;
  taken_ = answer == Accept::Take;
  if (!taken_) to_ = nullptr;
  place_ = to_;
  burst.moved = true;
  return Result::More;
}

TcpReader::Result TcpReader::read_payload(int socket, Burst &burst) noexcept {
  while (left_ > 0) {
    if (begin_ < end_) {
      const size_t n = std::min<size_t>(left_, end_ - begin_);
      if (to_) copy_bytes(to_, buffer_ + begin_, n), to_ += n;
      begin_ += n;
      left_ -= static_cast<uint32_t>(n);
      burst.moved = true;
      continue;
    }
    if (burst.drained || (to_ && left_ >= burst.leave && !ended_)) return Result::Wait;
    begin_ = end_ = 0;
    // A drained payload goes through the buffer. Any other goes straight to its place.
    const size_t want = to_ ? left_ : std::min<size_t>(left_, kBuffer);
    size_t got = 0;
    if (const Result r = receive(socket, to_ ? to_ : buffer_, want, got); r != Result::More) return r;
    burst.bytes += got;
    if (to_) to_ += got;
    left_ -= static_cast<uint32_t>(got);
    burst.moved = burst.moved || burst.bytes >= kWorth || left_ == 0;
    burst.drained = got < want;
  }
  return Result::More;
}

TcpReader::Result TcpReader::receive(int socket, std::byte *to, size_t want, size_t &got) noexcept {
  while (!ended_) {
    const ssize_t n = ::recv(socket, to, want, MSG_DONTWAIT);
    if (n > 0) {
      got = static_cast<size_t>(n);
      return Result::More;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Result::Wait;
    error_ = n == 0 ? 0 : errno;  // the kernel says once that a connection has failed
    ended_ = true;
  }
  return Result::Ended;
}

void TcpReader::bring(int socket) noexcept {
  Burst burst;
  read_payload(socket, burst);
}

std::string TcpReader::why() const {
  if (fault_) return formatted("protocol error: {}", fault_);
  return error_ == 0 ? "the peer closed the connection" : system_text("recv", error_);
}

void TcpReader::cancel(uint32_t member, uint32_t epoch) noexcept {
  if (!have_header_ || header_.member != member || header_.epoch != epoch) return;
  to_ = place_ = nullptr;
  taken_ = false;
}

void TcpReader::lose() {
  if (have_header_ && accepted_) half_->keep(header_, place_, taken_);
  forget();
  begin_ = end_ = 0;
  low_water_ = 1;
}

void TcpReader::forget() noexcept {
  have_header_ = accepted_ = false;
  to_ = place_ = nullptr;
  fault_ = nullptr;
  ended_ = false;
  deferred_.store(false, std::memory_order_relaxed);
}

void TcpReader::set_low_water(int socket, uint32_t bytes) noexcept {
  const int n = static_cast<int>(bytes);
  if (bytes != low_water_ && ::setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n) == 0) low_water_ = bytes;
}

}  // namespace isthmus::link
