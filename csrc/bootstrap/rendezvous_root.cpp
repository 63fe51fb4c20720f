#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/gathering.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

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
    if (failure.ok()) return blobs;
    while (!gathering_.tell_failure(deadline)) pump(Deadline::at_ns(gathering_.wakes_ns()));
    throw Error(failure.code, failure.text);
  }

 private:
  // The blobs by rank. Empty: the round failed.
  std::vector<Blob> round(const Blob &mine, Deadline deadline) {
    const auto failed = [&] { return !gathering_.failure().ok(); };
    while (!gathering_.gathered() && !failed())  // gathered() may find that a rank is lost
      if (!pump(deadline) && !gathering_.gathered() && !failed()) gathering_.time_out(deadline.seconds());
    if (failed()) return {};
    std::vector<Blob> blobs = gathering_.distribute(&mine);
    while (!failed() && !gathering_.flushed())
      if (!pump(deadline) && !gathering_.flushed()) gathering_.time_out(deadline.seconds());
    if (failed()) return {};
    return blobs;
  }

  // Waits for something to do and does it. False at the deadline.
  bool pump(Deadline deadline) {
    std::vector<pollfd> fds{{gate_.fd(), POLLIN, 0}};
    gathering_.watch(fds);
    net::wait_events(fds, Deadline::at_ns(std::min(deadline.ns(), gate_.next_deadline_ns())));
    gathering_.hear(std::span<const pollfd>(fds).subspan(1));
    std::vector<net::Guest> guests;
    gate_.service(guests);
    for (net::Guest &g : guests) gathering_.admit(std::move(g));
    return !deadline.passed();
  }

  net::Gate gate_;
  Gathering gathering_;
};

}  // namespace

std::unique_ptr<Exchange> root_exchange(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key,
                                        const Bytes16 &job) {
  return std::make_unique<Root>(std::move(listeners), std::move(where), world, key, job);
}

}  // namespace isthmus::bootstrap
