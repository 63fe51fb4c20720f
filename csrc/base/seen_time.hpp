// Time, as far as somebody has looked. A process that was stopped has seen none of the time that has passed meanwhile, and its threads have done nothing
// in it: what they had so much time for they still have.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace isthmus {

// Thread-safe: several threads that look see the time once.
class SeenTime {
 public:
  static constexpr int64_t kMostBetweenLooks = 50'000'000;  // ns
  // Nanoseconds seen since the first look, of which at most kMostBetweenLooks from one look to the next. `now_ns` as of now_ns().
  int64_t look(int64_t now_ns) noexcept {
    const int64_t last = last_ns_.exchange(now_ns, std::memory_order_relaxed);
    if (last == 0) return seen_ns_.load(std::memory_order_relaxed);
    const int64_t since = std::clamp<int64_t>(now_ns - last, 0, kMostBetweenLooks);
    return seen_ns_.fetch_add(since, std::memory_order_relaxed) + since;
  }

 private:
  std::atomic<int64_t> last_ns_{0}, seen_ns_{0};
};

}  // namespace isthmus
