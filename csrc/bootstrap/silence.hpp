// Who has been silent for too long (ISTHMUS_SILENCE_MS): a process that is stopped, or whose control thread gets no processor. Its kernel
// still acknowledges, so nothing else tells of it before a deadline.
//
// Silence counts from what was heard last, and from the last moment at which this process was deaf itself: after a stop of its own (a whole
// job is stopped and continued, a debugger) everybody seems silent, and whatever they said meanwhile is yet to be read.
//
// Pure: the control thread says what time it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace isthmus::bootstrap {

class Silence {
 public:
  // Nanoseconds; 0: nobody is watched.
  explicit Silence(int64_t limit_ns) noexcept : limit_(limit_ns) {}

  bool watched() const noexcept { return limit_ > 0; }
  // When the control thread has to be awake again. It comes often, so that a gap between its turns means that this process was away.
  int64_t next_ns() const noexcept {
    return limit_ > 0 ? last_turn_ + limit_ / kTurns : std::numeric_limits<int64_t>::max();
  }
  // The control thread is awake.
  void turn(int64_t now) noexcept {
    if (now - last_turn_ > limit_ / 2) hearing_since_ = now;
    last_turn_ = now;
  }
  // Whether a process that was last heard at `heard`, and speaks every `interval` (both in ns), had been silent for too long at the last turn: this
  // process may have been away since then, too.
  bool over(int64_t heard, int64_t interval) const noexcept {
    return limit_ > 0 && last_turn_ - std::max(heard, hearing_since_) > std::max(limit_, kBeats * interval);
  }

 private:
  static constexpr int64_t kTurns = 8;  // in the time of the limit
  static constexpr int64_t kBeats = 3;  // heartbeats of a process that may be missed, whatever the limit
  const int64_t limit_;
  int64_t last_turn_ = 0, hearing_since_ = 0;
};

}  // namespace isthmus::bootstrap
