// What the root of a rendezvous knows of the ranks: the connections, who has which rank, and how long a round waits for the rest.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/handles.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/frame.hpp"
#include "net/handshake.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {

// One connection to the root. A client has a rank once the client has introduced itself and the roster has taken it.
struct RootClient {
  UniqueFd fd;  // empty: the client has left
  net::Hello hello;
  std::string from;
  std::optional<Join> join;  // once the client has introduced itself
  bool failed_told = false;
  net::FrameReader reader{kMaxRendezvousBody};
  std::deque<std::shared_ptr<const net::ByteVector>> out;
  size_t sent = 0;                 // of out.front()
  std::map<uint32_t, Blob> blobs;  // by round
  std::optional<Status> gave_up;   // the round there is, just now; OK: the client has only waited

  int rank() const noexcept { return static_cast<int>(hello.index); }
  // Whether the client is in this process. Such a client is told last, because it may end this process when it hears.
  bool is_own() const { return hello.process == rendezvous_process(); }
  bool contributed(uint32_t round) const { return blobs.contains(round); }
  std::string text() const {
    return formatted("rank {} (process {} on host {}, {})", rank(), join ? join->pid : 0, join ? join->hostname : "?", from);
  }
  // Gives the kernel what the kernel takes. False: the connection is broken.
  bool flush() {
    while (fd && !out.empty()) {
      const ssize_t n = net::send_some(fd.get(), std::span(*out.front()).subspan(sent));
      if (n < 0) return false;
      sent += static_cast<size_t>(n);
      if (sent < out.front()->size()) break;
      out.pop_front();
      sent = 0;
    }
    return true;
  }
};

// Who has which rank. The clients belong to the root.
class Roster {
 public:
  static constexpr uint32_t kMostRanks = 16'777'216;

  // 0: how many ranks there are is not known yet, and the root stands for none of them.
  explicit Roster(int world) : first_(world > 0 ? 1 : 0), by_rank_(static_cast<size_t>(world)) {}
  void settle(uint32_t world) { by_rank_.resize(world); }

  int world() const noexcept { return static_cast<int>(by_rank_.size()); }  // 0: not known yet
  // The lowest rank that is elsewhere: 1, or 0 where the root stands for none.
  size_t first() const noexcept { return first_; }
  bool serves_all() const noexcept { return first_ == 0; }  // the root stands for no rank
  // nullptr: not arrived, or no such rank. Rank 0 of a root that stands for it never arrives.
  RootClient *at(size_t rank) const noexcept { return rank < by_rank_.size() ? by_rank_[rank] : nullptr; }
  void seat(RootClient &c) { by_rank_[c.hello.index] = &c; }
  std::span<RootClient *const> elsewhere() const { return std::span(by_rank_).subspan(std::min(first_, by_rank_.size())); }
  bool has(const RootClient *c) const { return std::find(by_rank_.begin(), by_rank_.end(), c) != by_rank_.end(); }

  bool member(const RootClient &c) const { return c.join && at(c.hello.index) == &c; }
  bool complete() const {
    const auto ranks = elsewhere();
    return world() > 0 && std::all_of(ranks.begin(), ranks.end(), [](const RootClient *c) { return c != nullptr; });
  }
  // All ranks came, and all are gone again.
  bool left() const {
    const auto ranks = elsewhere();
    return complete() && std::all_of(ranks.begin(), ranks.end(), [](const RootClient *c) { return !c->fd; });
  }
  std::vector<int> absent() const {  // the ranks that have not come
    return which([](const RootClient *c) { return !c; });
  }
  size_t missing() const noexcept {  // how many have not come; 0 where nobody knows yet how many there are
    const auto ranks = elsewhere();
    return static_cast<size_t>(std::count(ranks.begin(), ranks.end(), nullptr));
  }
  bool all_contributed(uint32_t round) const {
    const auto ranks = elsewhere();
    return std::all_of(ranks.begin(), ranks.end(), [&](const RootClient *c) { return c && c->contributed(round); });
  }
  std::vector<int> silent(uint32_t round) const {  // the ranks that have come and have not contributed to the round
    return which([round](const RootClient *c) { return c && !c->contributed(round); });
  }

 private:
  template <class F>
  std::vector<int> which(F holds) const {
    std::vector<int> ranks;
    for (size_t r = first_; r < by_rank_.size(); ++r)
      if (holds(by_rank_[r])) ranks.push_back(static_cast<int>(r));
    return ranks;
  }

  const size_t first_;
  std::vector<RootClient *> by_rank_;
};

// How long one round waits for the ranks that have not contributed. The contributions that came say how long (Patience).
class RoundPatience {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kTellNs = 5'000'000'000;  // after so long a wait the log says for whom the ranks wait

  void note(const Contribution &m) {
    const auto kin = m.blob.first(m.patience.alike);
    if (came_ns_ == 0) kin_.assign(kin.begin(), kin.end());
    all_kin_ = all_kin_ && std::equal(kin.begin(), kin.end(), kin_.begin(), kin_.end());
    longest_ns_ = std::max(longest_ns_, m.patience.ns);
    if (came_ns_ == 0 && m.patience.ns > 0) first_ns_ = now_ns();
    came_ns_ = now_ns();
  }
  // When the ranks that came wait no longer for the others.
  int64_t until_ns() const noexcept {
    return kin_.empty() || !all_kin_ || longest_ns_ > kNever - came_ns_ ? kNever : came_ns_ + longest_ns_;
  }
  // When the log is to say who is missing; kNever: nobody waits, or the log has said it.
  int64_t tell_ns() const noexcept { return first_ns_ == 0 ? kNever : first_ns_ + kTellNs; }
  void told() noexcept { first_ns_ = 0; }

 private:
  Blob kin_;  // the bytes with which all contributions begin
  bool all_kin_ = true;
  int64_t longest_ns_ = 0;
  int64_t came_ns_ = 0;   // when the newest contribution came; 0: none yet
  int64_t first_ns_ = 0;  // when the first contribution with patience came; 0: none, or the log has said who is missing
};

}  // namespace isthmus::bootstrap
