// How many data connections two processes need over a long way, where no setting says it.
#pragma once

#include <algorithm>
#include <cstdint>

namespace isthmus::bootstrap {

inline constexpr int64_t kLongWayNs = 1'000'000;  // a round trip, from which on waiting for one is dear
inline constexpr int kMostStreamsOver = 8;

// A connection has no more under way than its kernel keeps until it is acknowledged, `window` bytes, and so carries a window in a round trip.
// As many as carry a gigabyte a second together; 1 to kMostStreamsOver. A round trip or a window of 0 is not known: 1.
constexpr int streams_over(int64_t round_trip_ns, int64_t window) noexcept {
  if (round_trip_ns <= 0 || window <= 0) return 1;
  const int64_t wanted = round_trip_ns / window + (round_trip_ns % window != 0);  // 1 ns at a gigabyte a second is a byte
  return static_cast<int>(std::clamp<int64_t>(wanted, 1, kMostStreamsOver));
}

}  // namespace isthmus::bootstrap
