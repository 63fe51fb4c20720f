// Ranks that went elsewhere. Who was started without Isthmus takes an id for its library's own, and connects to the listener that the
// library has for the id. Such a rank comes to no meeting. All that can be known of it is that somebody connected there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace isthmus::bootstrap {

class Elsewhere {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  // So long nobody else came, at either place, and as many connected there as are missing here: those are the missing ones.
  static constexpr int64_t kAllNs = 1'000'000'000;
  // The same where a rank has come here since: the others may come one by one, and one of those that connected may be a stranger.
  static constexpr int64_t kComingNs = 5'000'000'000;
  // The same with another number. Some of the missing ranks may be late, and somebody who looks for open ports may have connected.
  static constexpr int64_t kSomeNs = 20'000'000'000;

  void note(const std::string &at, int64_t now_ns) {
    at_ = at;
    last_ns_ = now_ns;
    ++connections_;
  }
  size_t connections() const noexcept { return connections_; }
  const std::string &at() const noexcept { return at_; }  // the listener's address
  // When so many missing ranks are waited for no longer. `came_ns`: when the newest of those came that are here.
  int64_t until_ns(size_t missing, int64_t came_ns) const noexcept {
    if (connections_ == 0 || missing == 0) return kNever;
    const int64_t quiet_ns = connections_ != missing ? kSomeNs : came_ns > last_ns_ ? kComingNs : kAllNs;
    return std::max(last_ns_, came_ns) + quiet_ns;
  }

 private:
  std::string at_;
  size_t connections_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace isthmus::bootstrap
