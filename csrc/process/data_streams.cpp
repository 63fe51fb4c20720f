#include "process/data_streams.hpp"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "bootstrap/host.hpp"

namespace isthmus::process {
namespace {

constexpr std::chrono::milliseconds kPause{100};  // between attempts
constexpr double kLeastAttemptSeconds = 0.4;

}  // namespace

void DataStreams::add(bootstrap::Peer &peer, link::TcpLink &link) {
  const Lock lock(mutex_);
  links_.push_back(std::make_unique<WatchedLink>(WatchedLink{&peer, &link}));
  links_.back()->told = link.news().report();
}

bool DataStreams::several() const {
  const Lock lock(mutex_);
  return std::any_of(links_.begin(), links_.end(), [](const auto &w) { return w->told.size() > 1; });
}

void DataStreams::use_key(const bootstrap::Peer &peer, const bootstrap::Bytes16 &key) {
  const Lock lock(mutex_);
  for (auto &w : links_) {
    if (w->peer != &peer) continue;
    std::erase_if(w->keys, [&](const bootstrap::Bytes16 &other) { return other == key || !mesh_->has_key(other); });
    w->keys.push_back(key);
  }
}

bool DataStreams::let_go(const bootstrap::Peer &peer) {
  const Lock lock(mutex_);
  std::erase_if(links_, [&](const auto &w) { return w->peer == &peer && !w->dialed; });
  return std::none_of(links_.begin(), links_.end(), [&](const auto &w) { return w->peer == &peer; });
}

bool DataStreams::look(WatchedLink &w, std::vector<std::string> &news) {
  if (w.told.size() < 2 || w.link->broken() || w.peer->lost.load(std::memory_order_acquire)) return false;
  const auto now = w.link->news().report();
  const auto say = [&](size_t s, const std::string &what) {
    news.push_back(
        formatted("data stream {} of {} to {} {}", s + 1, now.size(), bootstrap::process_text(w.peer->endpoint), what));
  };
  for (size_t s = 0; s < now.size(); ++s) {
    if (now[s].lost != w.told[s].lost)
      say(s, formatted("was lost ({}); the others carry its part, and it is tried again", now[s].why));
    if (now[s].back != w.told[s].back) say(s, "is back");
  }
  w.told = now;
  const bool all = std::all_of(now.begin(), now.end(), [](const link::StreamReport &r) { return r.connected; });
  w.silent = mesh_->to_carry_over(*w.peer);
  if (!all && mesh_->dials(*w.peer)) w.wanted = true;
  return w.wanted || w.silent;
}

void DataStreams::look() noexcept {
  std::vector<std::string> news;  // for the log, which may take its time
  try {
    bool wanted = false;
    {
      const Lock lock(mutex_);
      for (auto &w : links_) wanted |= look(*w, news);
      wanted = wanted && !stop_;
      if (wanted && !thread_.joinable()) thread_ = begin_own_thread([this] { loop(); });
    }
    if (wanted) changed_.notify_all();
  } catch (const std::exception &e) { ISTHMUS_WARN("a lost data stream is not connected again: {}", e.what()); }
  for (const std::string &text : news) ISTHMUS_WARN("{}", text);
}

void DataStreams::came(bootstrap::Peer &peer, uint32_t stream, uint32_t generation, UniqueFd socket) {
  {
    const Lock lock(mutex_);
    const auto at = std::find_if(links_.begin(), links_.end(), [&](const auto &w) { return w->peer == &peer; });
    if (at == links_.end() || stream >= (*at)->link->news().streams()) return;
    (*at)->link->news().offer({stream, generation, std::move(socket)});
  }
  bell_.ring();
}

void DataStreams::end() noexcept {
  std::thread thread;
  {
    const Lock lock(mutex_);
    stop_ = true;
    thread.swap(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

bool DataStreams::stopped() const noexcept {
  const Lock lock(mutex_);
  return stop_;
}

int DataStreams::threads() const noexcept {
  const Lock lock(mutex_);
  return thread_.joinable() ? 1 : 0;
}

std::vector<DataStreams::OfPeer> DataStreams::report() const {
  const Lock lock(mutex_);
  std::vector<OfPeer> out;
  for (const auto &w : links_) {
    out.push_back({w->peer, w->link->news().report(), {}});
    std::vector<pollfd> sockets;
    w->link->descriptors(sockets);
    for (const pollfd &socket : sockets)
      if (net::Traffic t = net::traffic(socket.fd); !t.to.empty()) out.back().connections.push_back(std::move(t));
  }
  return out;
}

bool DataStreams::dial(const WatchedLink &w) {
  if (w.link->broken() || w.peer->lost.load(std::memory_order_acquire)) return false;
  if (w.keys.empty()) return true;
  bool all = true;
  link::StreamNews &news = w.link->news();
  const auto streams = news.report();
  // An attempt takes three round trips. One whose first word is lost on a cable that is still silent is over soon, and the next finds the cable's return.
  const int64_t round = news.round_ns();
  const double seconds =
      round == 0 ? kAttemptSeconds : std::clamp(8e-9 * static_cast<double>(round), kLeastAttemptSeconds, kAttemptSeconds);
  for (uint32_t s = 0; s < streams.size(); ++s) {
    if (streams[s].connected) continue;
    all = false;
    if (news.untaken(s) || stopped()) continue;
    try {
      const uint32_t generation = news.next_generation(s);
      // The other side may have dropped a key already that lives here, so the attempts take them in turn.
      const auto &key = w.keys[generation % w.keys.size()];
      news.offer({s, generation, mesh_->connect_again(*w.peer, key, s, generation, Deadline(seconds))});
      bell_.ring();
    } catch (const Error &e) { ISTHMUS_DEBUG("data stream {} to {}: {}", s + 1, w.peer->endpoint.hostname, e.text()); }
  }
  return !all;
}

void DataStreams::carry_over(const WatchedLink &w) {
  for (const auto &key : w.keys) try {  // the other side may have dropped a key already that lives here
      return mesh_->carry_over(*w.peer, key, Deadline(kAttemptSeconds));
    } catch (const Error &e) { ISTHMUS_DEBUG("control connection to {}: {}", w.peer->endpoint.hostname, e.text()); }
}

void DataStreams::loop() noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-redial");
  Lock lock(mutex_);
  while (!stop_) {
    bool wanted = false;
    for (size_t i = 0; i < links_.size() && !stop_; ++i) {
      if (!links_[i]->wanted && !links_[i]->silent) continue;
      WatchedLink *const own = links_[i].get();  // stays while it is dialed
      own->dialed = true;
      WatchedLink w = *own;
      std::erase_if(w.keys, [&](const bootstrap::Bytes16 &key) { return !mesh_->has_key(key); });
      bool more = false;
      {
        const Unlocked outside(mutex_);
        try {
          if (w.silent) carry_over(w);
          more = w.wanted && dial(w);
        } catch (const std::exception &e) { ISTHMUS_WARN("a lost data stream is not connected again: {}", e.what()); }
      }
      own->dialed = false;
      own->silent = false;  // the next look() says whether it still is
      own->wanted = more;   // else the next look() says so again
      wanted |= more;
    }
    if (stop_) return;
    if (wanted) changed_.wait_for(lock, kPause, [&]() ISTHMUS_REQUIRES(mutex_) { return stop_; });
    else changed_.wait(lock);
  }
}

}  // namespace isthmus::process
