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

// What two processes have of the interfaces between their hosts.
struct NearWay {
  int64_t rate = 0, others_rate = 0;  // of the interface of each, in megabits a second; 0: not known
  int on_host = 1, on_others = 1;     // processes of the communicator that share it
  int processes = 2;                  // of the communicator
};

// The same where the way is not long. A connection keeps one processor busy at each end, which carries some 25 to 40 gigabits a second: so one for
// each 25 of what falls to the two. All that a process has are some kMostNear at most, since each is a descriptor, and where the other
// processes are many there are many connections anyway.
constexpr int streams_near(const NearWay &way) noexcept {
  constexpr int64_t kOfOne = 25'000, kMostNear = 128;
  const int64_t rate = std::min(way.rate / std::max(way.on_host, 1), way.others_rate / std::max(way.on_others, 1));
  const int64_t most = std::clamp<int64_t>(kMostNear / std::max(way.processes, 1), 1, kMostStreamsOver);
  return static_cast<int>(std::clamp<int64_t>((rate + kOfOne - 1) / kOfOne, 1, most));
}

}  // namespace isthmus::bootstrap
