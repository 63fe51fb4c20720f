// Which of several streams takes the next piece over a long way, where a round trip counts for more than a rate; and how much may be under way.
//
// A stream's rate is what its kernel knows of its share of the way. A stream that had little to send so far has a small one, and a piece may take
// many round trips by it. So a piece goes by the stream by which its last byte leaves this host first, behind what waits there: by the first one of
// several alike. Then all streams have sent their last piece at about the same time.
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
    waits_[s] = w.waits;
    rate_[s] = w.rate;
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
    waits_[s] += bytes;
    under_way_ += bytes;
  }
  int64_t most() const noexcept { return std::max(kLeast, came_ + came_ / 2 + kMore); }
  // Whether stream s, which may be given a piece, is to take one of so many bytes. `may(o)`: likewise another of the `streams`.
  template <class May>
  bool takes(size_t s, int64_t bytes, size_t streams, May may) const noexcept {
    if (under_way_ > 0 && under_way_ + bytes > most()) return false;
    const double mine = through(s, bytes);
    for (size_t o = 0; o < streams; ++o) {
      if (o == s || !may(o)) continue;
      const double then = through(o, bytes);
      if (then < mine || (then == mine && o < s)) return false;
    }
    return true;
  }

 private:
  // Seconds until the last of so many bytes more has left this host.
  double through(size_t s, int64_t bytes) const noexcept {
    return static_cast<double>(waits_[s] + bytes) / static_cast<double>(std::max<int64_t>(rate_[s], 1));
  }

  const int64_t round_ns_;
  std::array<int64_t, StreamBook::kMostStreams> waits_{}, rate_{};
  int64_t under_way_ = 0, acknowledged_ = 0;  // of all streams
  int64_t began_ns_ = 0, before_ = 0;         // when the round trip began, and what had been acknowledged then
  int64_t came_ = 0;                          // in a round trip, of late
};

}  // namespace isthmus::link
