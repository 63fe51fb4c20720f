#include <sys/eventfd.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/gathering.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/fork_guard.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kLookNs = 250'000'000;
constexpr int64_t kReasonsNs =
    500'000'000;  // by so much the deadlines of the ranks may be apart, which they begin one after the other

// The root of a rendezvous over TCP that stands for rank 0. It listens, and it serves inside of its own calls.
class Root final : public Exchange {
 public:
  Root(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key, const Bytes16 &job)
      : gate_(rendezvous_process(), net::Gate::UnknownKey::Refuse), gathering_(std::move(where), world, gate_) {
    gate_.add_key(key);
    gate_.set_job(job);
    for (UniqueFd &fd : listeners) gate_.add_listener(std::move(fd));
  }

  std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) override {
    check_blob(mine);
    gathering_.begin();
    auto blobs = round(mine, deadline);
    const Status &failure = gathering_.failure();
    if (failure.ok()) {
      met_ = true;
      reason_ = {};
      return blobs;
    }
    spare_.reset();
    while (!gathering_.tell_failure(deadline)) pump(Deadline::at_ns(gathering_.wakes_ns()));
    throw Error(failure.code, failure.text);
  }

  bool give_reason(const Status &why) override {
    reason_ = why;
    return true;
  }
  void look() override {
    pump(Deadline(0.0));
    if (const Status &failure = gathering_.failure(); !failure.ok()) throw Error(failure);
  }

 private:
  // The blobs by rank. Empty: the round failed.
  std::vector<Blob> round(const Blob &mine, Deadline deadline) {
    const auto failed = [&] { return !gathering_.failure().ok(); };
    // Behind the first round the others are late for a reason, which they say at their own deadlines.
    const int64_t left_ns = met_ ? std::min(kReasonsNs, INT64_MAX - deadline.ns()) : 0;
    const Deadline until = Deadline::at_ns(deadline.ns() + left_ns);
    while (!gathering_.gathered() && !failed())  // gathered() may find that a rank is lost
      if (!pump(until) && !gathering_.gathered() && !failed()) gathering_.time_out(deadline.seconds(), reason_);
    if (failed()) return {};
    std::vector<Blob> blobs = gathering_.distribute(&mine);
    while (!failed() && !gathering_.flushed())
      if (!pump(deadline) && !gathering_.flushed()) gathering_.time_out(deadline.seconds(), reason_);
    if (failed()) return {};
    return blobs;
  }

  // Waits for something to do and does it. False at the deadline.
  bool pump(Deadline deadline) {
    std::vector<pollfd> fds{{gate_.fd(), POLLIN, 0}};
    gathering_.watch(fds);
    // Another gate of this process may find meanwhile that there are no descriptors.
    const int64_t look_ns = now_ns() + kLookNs;
    net::wait_events(fds, Deadline::at_ns(std::min({deadline.ns(), gate_.next_deadline_ns(), look_ns})));
    gathering_.hear(std::span<const pollfd>(fds).subspan(1));
    std::vector<net::Guest> guests;
    gate_.service(guests);
    for (net::Guest &g : guests) gathering_.admit(std::move(g));
    return !deadline.passed();
  }

  net::Gate gate_;
  Gathering gathering_;
  bool met_ = false;  // in the first round
  Status reason_;     // what has failed here before this round
  // Given up behind a failure: where there are no descriptors, the others come by this one, one by one, and are told.
  net::GuardedFd spare_{UniqueFd(::eventfd(0, EFD_CLOEXEC))};
};

}  // namespace

std::unique_ptr<Exchange> root_exchange(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key,
                                        const Bytes16 &job) {
  return std::make_unique<Root>(std::move(listeners), std::move(where), world, key, job);
}

}  // namespace isthmus::bootstrap
