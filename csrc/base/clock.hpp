// Time. Monotonic nanoseconds (vDSO, no system call) and deadlines.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace isthmus {

inline int64_t now_ns() noexcept {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

constexpr int64_t seconds_to_ns(double s) noexcept {
  return s >= 9e9 ? std::numeric_limits<int64_t>::max() / 2 : static_cast<int64_t>(s * 1e9);
}

// A point in time by which something must have happened.
class Deadline {
 public:
  explicit Deadline(double seconds) noexcept : at_(now_ns() + seconds_to_ns(seconds)), seconds_(seconds) {}
  static Deadline at_ns(int64_t at) noexcept {
    Deadline d;
    d.at_ = at;
    return d;
  }
  bool passed() const noexcept { return now_ns() >= at_; }
  int64_t left_ns() const noexcept {
    const int64_t left = at_ - now_ns();
    return left > 0 ? left : 0;
  }
  int left_ms() const noexcept {  // rounded up, for poll(); at most a day
    const int64_t ms = (left_ns() + 999'999) / 1'000'000;
    return ms > 86'400'000 ? 86'400'000 : static_cast<int>(ms);
  }
  int64_t ns() const noexcept { return at_; }
  double seconds() const noexcept { return seconds_; }  // that were given, for messages; 0: a point in time was

 private:
  Deadline() = default;
  int64_t at_ = 0;
  double seconds_ = 0;
};

}  // namespace isthmus
