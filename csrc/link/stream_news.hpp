// What other threads are told of the streams of a TCP link, and the new connections that they offer it. Any thread may call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/handles.hpp"
#include "base/lock.hpp"

namespace isthmus::link {

struct StreamReport {
  bool connected = true;
  uint32_t lost = 0, back = 0;  // how often
  uint32_t generation = 0;      // of the last connection that was tried
  std::string why;              // it was lost the last time
};

struct StreamOffer {  // a new connection of a stream
  uint32_t stream, generation;
  UniqueFd socket;
};

class StreamNews {
 public:
  explicit StreamNews(size_t streams) : streams_(streams), reports_(streams) {}
  size_t streams() const noexcept { return streams_; }

  std::vector<StreamReport> report() const {
    const Lock lock(mutex_);
    return reports_;
  }
  void lost(size_t stream, const std::string &why) {
    const Lock lock(mutex_);
    StreamReport &r = reports_[stream];
    r.connected = false;
    ++r.lost;
    r.why = why;
  }
  void back(size_t stream) {
    const Lock lock(mutex_);
    reports_[stream].connected = true;
    ++reports_[stream].back;
  }
  // The number of the stream's next connection, for the side that dials.
  uint32_t next_generation(size_t stream) {
    const Lock lock(mutex_);
    return ++reports_[stream].generation;
  }
  // A thread with the link's turn takes it up. Whoever sleeps on the link is to be woken.
  void offer(StreamOffer offer) {
    const Lock lock(mutex_);
    StreamReport &r = reports_[offer.stream];
    r.generation = std::max(r.generation, offer.generation);
    std::erase_if(offers_, [&](const StreamOffer &older) { return older.stream == offer.stream; });
    offers_.push_back(std::move(offer));
    offered_.store(true, std::memory_order_release);
  }
  // Whether nobody has taken up the stream's last offer yet.
  bool untaken(size_t stream) const {
    const Lock lock(mutex_);
    return std::any_of(offers_.begin(), offers_.end(), [&](const StreamOffer &o) { return o.stream == stream; });
  }
  // A round trip, as the streams that live have it under the load of the moment; 0: not known.
  int64_t round_ns() const noexcept { return round_ns_.load(std::memory_order_relaxed); }
  void set_round(int64_t ns) noexcept { round_ns_.store(ns, std::memory_order_relaxed); }
  bool offered() const noexcept { return offered_.load(std::memory_order_acquire); }
  std::vector<StreamOffer> take_offers() {
    const Lock lock(mutex_);
    offered_.store(false, std::memory_order_relaxed);
    return std::exchange(offers_, {});
  }

 private:
  const size_t streams_;
  mutable Mutex mutex_;  // held over no system call, and only where a stream is lost, comes again or is asked about
  std::vector<StreamReport> reports_ ISTHMUS_GUARDED_BY(mutex_);
  std::vector<StreamOffer> offers_ ISTHMUS_GUARDED_BY(mutex_);
  std::atomic<bool> offered_{false};
  std::atomic<int64_t> round_ns_{0};
};

}  // namespace isthmus::link
