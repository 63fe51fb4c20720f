// How long the control thread waits for the end of a process of this host, whose descriptors have just been closed. Whether the process has ended is
// worth 100 ms. Where many are killed at one time they end meanwhile, and the others have the same 100 ms: heartbeats and messages wait for the control
// thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace isthmus::bootstrap {

class EndingWait {
 public:
  int left_ms(int64_t now_ns) noexcept {
    if (now_ns - begun_ns_ >= kTogetherNs) begun_ns_ = now_ns;
    return static_cast<int>(std::max<int64_t>(kMostNs - (now_ns - begun_ns_), 0) / 1'000'000);
  }

 private:
  static constexpr int64_t kMostNs = 100'000'000, kTogetherNs = 1'000'000'000;
  int64_t begun_ns_ = -kTogetherNs;
};

}  // namespace isthmus::bootstrap
