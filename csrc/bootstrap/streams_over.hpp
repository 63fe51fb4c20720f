// How many data connections two processes need, where no setting says it: over a long way, and on a fast network.
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

// One connection keeps one processor busy at each end, which carries some 25 to 40 gigabits a second. One for each 25 of an interface's `rate` (megabits
// a second; 0 or less: not known); 1 to kMostStreamsOver.
constexpr int streams_at(int64_t rate) noexcept {
  constexpr int64_t kOfOne = 25'000;
  return static_cast<int>(std::clamp<int64_t>((std::max<int64_t>(rate, 0) + kOfOne - 1) / kOfOne, 1, kMostStreamsOver));
}

}  // namespace isthmus::bootstrap
