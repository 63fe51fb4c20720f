// Which of several streams takes the next piece over a long way, where a round trip counts for more than a rate; and how much may be under way.
//
// A kernel sends at once what a stream's congestion window has room for. What it does not is sent when acknowledgements come, a round trip on. So
// a piece goes by a stream that can send it at once, the first such one: then short messages go by few streams, whose windows are wide for that.
// Where none can, it goes by the one that can send most of it, or that has the least waiting.
//
// The windows of all streams together may be far more than the way and its queues hold, and then packets are lost. So no more is under way than one
// and a half times what came through in a round trip of late, and kMore; and kLeast in any case.
//
// Pure: it is told the time, and what the kernel says (net::window()).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "link/stream_book.hpp"
#include "net/socket.hpp"

namespace isthmus::link {

class StreamWindows {
 public:
  static constexpr int64_t kLeast = 4 << 20, kMore = 2 << 20;

  explicit StreamWindows(int64_t round_trip_ns) noexcept : round_ns_(round_trip_ns) {}
  // Before see(), which is called for each stream.
  void look() noexcept { under_way_ = acknowledged_ = 0; }
  void see(size_t s, const net::Window &w) noexcept {
    free_[s] = w.free;
    under_way_ += w.under_way;
    acknowledged_ += w.acknowledged;
  }
  // Behind see(). What has come through in a round trip fades by an eighth with each that brings less.
  void looked(int64_t now) noexcept {
    if (began_ns_ == 0 || acknowledged_ < before_) {  // the first look, or a stream was connected again
      began_ns_ = now;
      before_ = acknowledged_;
    }
    if (now - began_ns_ < round_ns_) return;
    const double rounds = static_cast<double>(now - began_ns_) / static_cast<double>(round_ns_);
    came_ = std::max(static_cast<int64_t>(static_cast<double>(acknowledged_ - before_) / rounds), came_ - came_ / 8);
    began_ns_ = now;
    before_ = acknowledged_;
  }
  void gave(size_t s, int64_t bytes) noexcept {
    free_[s] -= bytes;
    under_way_ += bytes;
  }
  int64_t most() const noexcept { return std::max(kLeast, came_ + came_ / 2 + kMore); }
  // Whether stream s, which may be given a piece, is to take one of so many bytes. `may(o)`: likewise another of the `streams`.
  template <class May>
  bool takes(size_t s, int64_t bytes, size_t streams, May may) const noexcept {
    if (under_way_ > 0 && under_way_ + bytes > most()) return false;
    if (free_[s] >= bytes) return true;
    for (size_t o = 0; o < streams; ++o)
      if (o != s && may(o) && (free_[o] > free_[s] || (free_[o] == free_[s] && o < s))) return false;
    return true;
  }

 private:
  const int64_t round_ns_;
  std::array<int64_t, StreamBook::kMostStreams> free_{};  // may be negative: so much waits in the kernel
  int64_t under_way_ = 0, acknowledged_ = 0;              // of all streams
  int64_t began_ns_ = 0, before_ = 0;                     // when the round trip began, and what had been acknowledged then
  int64_t came_ = 0;                                      // in a round trip, of late
};

}  // namespace isthmus::link
