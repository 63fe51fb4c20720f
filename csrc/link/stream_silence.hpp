// Whether the way of one TCP stream has fallen silent: a cable that is pulled out says nothing, and the kernel tells only after minutes.
//
// The other host's kernel acknowledges also while the process there does not run. So what counts is how long it has acknowledged nothing of
// what was sent:
//
//   a segment was sent again meanwhile, and a live kernel answers that at once:                             kAgainNs
//   none was. The other kernel has said how long it delays an answer at most:                               that and kSoonNs
//   none was, and it has not said (Linux before 6.15). It delays what several segments wait for by 40 ms:   kLateNs
//   one or two segments wait. Their answer may take 200 ms, and so may the kernel to send one again, so they do not count
//
//   this host's own interface is down, also where nothing could be sent since:                              two looks
//
// and in any case but the last two round trips, as long as they are under the load of the moment. A segment may also have been lost on a way
// that lives. After two round trips and two ticks the kernel sends the last one again, or the next one where there is more to send, and has
// its answer after another: until then, kRepairNs and three round trips, nothing is silent.
//
// Time counts only as far as somebody looked meanwhile: a process, or a host, that was away itself has heard nothing from anybody.
//
// Who is taken for silent by mistake loses nothing: its connection is made again, and what it owed goes once more at most. A stream that was
// back at once gets twice the time from then on.
//
// Pure: StreamSilence is told the time, and what the kernel says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "net/socket.hpp"

namespace isthmus::link {

class StreamSilence {
 public:
  static constexpr int64_t kLookNs = 5'000'000;  // how often somebody is to look, while anything is unanswered
  static constexpr int64_t kAgainNs = 25'000'000, kSoonNs = 17'000'000, kLateNs = 50'000'000, kRepairNs = 13'000'000;

  // `delay_ns`: how long the other kernel delays an answer at most; 0: it has not said.
  explicit StreamSilence(int64_t delay_ns = 0) noexcept
      : delay_ns_(delay_ns > 0 && delay_ns + kSoonNs < kLateNs ? delay_ns : 0) {}
  int64_t delay_ns() const noexcept { return delay_ns_; }  // 0 also where it is too long to be of use

  // How long the stream has been silent; 0: not too long yet.
  int64_t look(const net::Answers &a, int64_t now) noexcept {
    const int64_t gap = now - looked_, counted = std::min(gap, 2 * kLookNs);
    looked_ = now;
    const bool waited = waits_, were_several = several_;
    stuck_ = a.stuck && was_stuck_ ? stuck_ + counted : 0;
    if (!std::exchange(was_stuck_, a.stuck)) stuck_since_ = now;
    waits_ = a.unanswered != 0;
    several_ = a.unanswered >= kSeveral;
    if (!waited || !waits_ || a.quiet_ns < gap) {
      silent_ = late_ = waited && waits_ ? std::min(a.quiet_ns, counted) : 0;
      since_ = now;
      again_ = -1;
      repeated_ = a.repeated;
      return 0;
    }
    silent_ = std::min(silent_ + counted, a.quiet_ns);
    late_ = several_ && were_several ? std::min(late_ + counted, a.quiet_ns) : 0;
    if (a.repeated != repeated_) again_ = again_ < 0 ? 0 : again_ + counted;
    const bool unheard = again_ >= std::max(kLookNs / 2, a.round_ns);  // what was sent again had time to be answered
    const auto over = [&](int64_t time, int64_t limit, int64_t least) {
      return time >= std::max(limit << patience_, least);
    };
    return (unheard && over(silent_, kAgainNs, 2 * a.round_ns)) ||
                   over(late_, delay_ns_ != 0 ? delay_ns_ + kSoonNs : kLateNs, kRepairNs + 3 * a.round_ns)
               ? silent_
               : 0;
  }
  // Whether the other host answers on this stream, as far as the last look can tell. Where nothing was asked nothing says otherwise.
  bool answers() const noexcept { return !waits_ || (late_ < kAgainNs / 2 && (again_ < 0 || silent_ < kAgainNs / 2)); }

  // Something has waited for some time, so it is worth asking whether the interface is down. For how long; 0: it has not. Where the interface went
  // down first nothing is sent, and the kernel tries for the first time after 200 ms.
  int64_t doubt() const noexcept {
    const int64_t silent = waits_ ? silent_ : stuck_;
    return silent >= 2 * kLookNs ? silent : 0;
  }

  void lost(int64_t now) noexcept { lost_ = now; }  // taken for silent
  // A new connection of the stream.
  void begin(int64_t now) noexcept {
    patience_ = lost_ == 0 || now - lost_ > kBackAtOnceNs ? 0 : std::min(patience_ + 1, kMostPatience);
    waits_ = several_ = was_stuck_ = false;
    silent_ = late_ = stuck_ = 0;
    again_ = -1;
    looked_ = since_ = now;
  }
  int64_t since() const noexcept { return waits_ ? since_ : stuck_since_; }  // what waits now was first seen to wait

 private:
  static constexpr uint32_t kSeveral = 3;  // segments; from the second on a kernel that takes them in answers soon
  static constexpr int64_t kBackAtOnceNs = 300'000'000;  // so soon no cable is back, and a mistake is
  static constexpr int kMostPatience = 4;
  const int64_t delay_ns_;
  int64_t looked_ = 0, lost_ = 0, since_ = 0;
  int64_t silent_ = 0, late_ = 0;  // for how long something has waited, and several segments have
  int64_t again_ = -1;             // since a segment was seen to have been sent again; -1: none was
  uint32_t repeated_ = 0;
  int64_t stuck_ = 0, stuck_since_ = 0;  // for how long something has waited and nothing was under way
  bool waits_ = false, several_ = false, was_stuck_ = false;
  int patience_ = 0;
};

}  // namespace isthmus::link
