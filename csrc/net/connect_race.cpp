#include "net/connect_race.hpp"

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "net/shortage.hpp"
#include "net/wait.hpp"

namespace isthmus::net {
namespace {

constexpr int64_t kHeadStartNs = 20'000'000;  // of an address before the next one

}  // namespace

ConnectRace::ConnectRace(const std::vector<Address> &addresses) {
  for (const Address &a : addresses) attempts_.push_back({a});
}

void ConnectRace::end(Attempt &attempt, int error) {
  attempt.fd.reset();
  attempt.error = error;
  attempt.ended = true;
  next_begins_ns_ = 0;  // the next one need not wait
}

void ConnectRace::begin_next() {
  Attempt &attempt = attempts_[begun_++];
  const int error = begin_connect_tcp(attempt.address, attempt.fd);
  if (no_descriptors(error)) {
    note_shortage(error);
    if (!lasting_shortage().empty()) fail_system(attempt.address.text().c_str(), error);
  }
  next_begins_ns_ = now_ns() + kHeadStartNs;
  if (error != 0) end(attempt, error);
}

bool ConnectRace::next(Deadline deadline, UniqueFd &out, size_t &which) {
  for (;;) {
    while (begun_ < attempts_.size() && now_ns() >= next_begins_ns_) begin_next();
    std::vector<pollfd> fds;
    std::vector<size_t> of;
    for (size_t n = 0; n < begun_; ++n) {
      if (attempts_[n].ended) continue;
      fds.push_back({attempts_[n].fd.get(), POLLOUT, 0});
      of.push_back(n);
    }
    const bool more = begun_ < attempts_.size();
    if (fds.empty() && !more) return false;
    const int64_t until = more ? std::min(deadline.ns(), next_begins_ns_) : deadline.ns();
    wait_events(fds, Deadline::at_ns(until));
    for (size_t i = 0; i < fds.size(); ++i) {  // of two that are there, the better address
      if (fds[i].revents == 0) continue;
      Attempt &attempt = attempts_[of[i]];
      const int error = end_connect_tcp(attempt.address, attempt.fd.get());
      if (error == 0) {
        out = std::move(attempt.fd);
        which = of[i];
        attempt.ended = true;
        return true;
      }
      end(attempt, error);
    }
    if (!deadline.passed()) continue;
    for (size_t n = 0; n < begun_; ++n)
      if (!attempts_[n].ended) end(attempts_[n], ETIMEDOUT);
    begun_ = attempts_.size();  // the others were not tried
    return false;
  }
}

bool ConnectRace::all_refused() const noexcept {
  return std::all_of(attempts_.begin(), attempts_.end(), [](const Attempt &a) { return a.error == ECONNREFUSED; });
}

bool ConnectRace::nobody_listens() const {
  if (all_refused()) return true;
  const auto elsewhere = [](const Attempt &a) { return a.error == ECONNREFUSED && interface_of(a.address.text()).empty(); };
  const auto ended = [](const Attempt &a) {
    return a.error == ECONNREFUSED || a.error == ETIMEDOUT || a.error == EHOSTUNREACH || a.error == ENETUNREACH;
  };
  return std::all_of(attempts_.begin(), attempts_.end(), ended) &&
         std::any_of(attempts_.begin(), attempts_.end(), elsewhere);
}

std::string ConnectRace::why() const {
  std::string text;
  for (const Attempt &a : attempts_)
    if (a.error != 0) text += (text.empty() ? "" : "; ") + system_text(a.address.text().c_str(), a.error);
  return text;
}

}  // namespace isthmus::net
