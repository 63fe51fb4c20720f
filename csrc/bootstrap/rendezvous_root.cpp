#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/rendezvous_roster.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/gate.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr double kTellLatecomersSeconds = 1.0;  // after a failure: ranks that arrive within this time are told why
constexpr double kHearSeconds = 0.25;           // the time that the others have to read the failure and close

// The root of a rendezvous over TCP. The root stands for rank 0, or for no rank, and then all ranks are its clients.
//
//   client                                       root
//     Join                            ------>      the roster takes the rank
//     Contribution of round 0         ------>
//     (others: Join, Contribution)    ------>      the last one has come: round 0 is complete
//                                     <------      Result for each rank
//     Contribution of round 1         ------>      may come while a slow client still reads round 0
//
// The first failure ends all: the root sends one Failure to every client, also to those that arrive a little later.
class Root final : public Exchange {
 public:
  Root(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key, const Bytes16 &job = {})
      : where_(std::move(where)), roster_(world), gate_(rendezvous_process(), net::Gate::UnknownKey::Refuse) {
    gate_.add_key(key);
    gate_.set_job(job);
    for (UniqueFd &fd : listeners) gate_.add_listener(std::move(fd));
  }

  std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) override {
    check_blob(mine);
    start_ns_ = now_ns();
    auto blobs = round(&mine, deadline);
    if (failure_.ok()) return blobs;
    tell_failure(deadline);
    throw Error(failure_.code, failure_.text);
  }

  // Serves round after round, until all ranks have left or a round has failed. The ranks have deadlines, and the root waits as long as they do.
  void serve() {
    const Deadline never = Deadline::at_ns(std::numeric_limits<int64_t>::max());
    while (failure_.ok() && !roster_.left()) round(nullptr, never);
    if (!failure_.ok()) tell_failure(never);
  }

 private:
  // One round: the blobs by rank. Empty: the round failed, or all ranks have left before the round began.
  std::vector<Blob> round(const Blob *mine, Deadline deadline) {
    distributing_ = false;
    while (!gathered() && failure_.ok()) {  // gathered() may find that a rank is lost
      if (!mine && roster_.left()) return {};
      const Deadline patience = Deadline::at_ns(mine ? RoundPatience::kNever : patience_.until_ns());
      const int64_t tell_ns = patience_.tell_ns();
      if (pump(Deadline::at_ns(std::min({patience.ns(), deadline.ns(), tell_ns})))) continue;
      if (now_ns() >= tell_ns) {
        tell_who_is_missing();
        patience_.told();
        continue;
      }
      if (deadline.passed()) set_failure(Code::Timeout, missing_text(deadline.seconds()));
      else if (!gathered() && failure_.ok() && now_ns() >= patience_.until_ns())
        set_failure(Code::Timeout, missing_text(waited()) + "; those that came wait no longer (ISTHMUS_CENSUS)");
    }
    if (!failure_.ok()) return {};
    std::vector<Blob> blobs(static_cast<size_t>(roster_.world()));
    if (mine) blobs[0] = *mine;
    for (RootClient *c : roster_.elsewhere()) {
      const auto at = c->blobs.find(round_);
      blobs[c->hello.index] = std::move(at->second);
      c->blobs.erase(at);
    }
    auto result = std::make_shared<net::ByteVector>();
    for (size_t r = 0; r < blobs.size(); ++r) append_result(*result, round_, static_cast<uint32_t>(r), blobs[r]);
    wanted_ = false;
    ++round_;  // a fast rank's next contribution may come while a slow one still reads
    patience_ = {};
    distributing_ = true;
    for (const bool own : {false, true})
      for (RootClient *c : roster_.elsewhere())
        if (c->is_own() == own) queue(*c, result);
    while (failure_.ok() && !flushed())
      if (!pump(deadline)) set_failure(Code::Timeout, unread_text(deadline.seconds()));
    if (!failure_.ok()) return {};
    return blobs;
  }

  bool gathered() {
    const auto ranks = roster_.elsewhere();
    for (const RootClient *c : ranks) {
      if (!c) return false;
      if (c->contributed(round_)) continue;
      // Where nobody asks for another round, a rank that leaves is not missed.
      const bool asked = roster_.first() > 0 || std::any_of(ranks.begin(), ranks.end(), [&](const RootClient *o) {
                           return o && o->contributed(round_);
                         });
      if (!c->fd && asked) set_failure(Code::PeerLost, c->text() + " left the rendezvous; it has probably ended");
      return false;
    }
    return roster_.world() > 0;
  }
  bool flushed() const {
    return std::all_of(clients_.begin(), clients_.end(), [](const auto &c) { return !c->fd || c->out.empty(); });
  }
  void set_failure(Code code, std::string text) {
    if (failure_.ok()) failure_ = {code, std::move(text)};  // the first failure is the cause of the others
  }
  double waited() const {
    return 0.1 * std::round(static_cast<double>(now_ns() - start_ns_) * 1e-8);
  }  // seconds, to a tenth

  // The ranks that came wait for long, and none of them knows for whom.
  void tell_who_is_missing() const {
    const std::vector<int> absent = roster_.absent();
    if (absent.empty()) return;
    const int64_t until = patience_.until_ns();
    ISTHMUS_WARN(
        "{} of {} did not come within {:g} s to where a communicator's ranks meet ({}), and the others wait, {}. Such a "
        "rank may be late or have ended, or run without Isthmus or with ISTHMUS_DISABLE=1 (then set that for all ranks)",
        ranks_text(absent), roster_.world(), static_cast<double>(RoundPatience::kTellNs) * 1e-9, where_,
        until == RoundPatience::kNever
            ? std::string("until ISTHMUS_TIMEOUT")
            : formatted("for up to {:.0f} s more (ISTHMUS_CENSUS)", static_cast<double>(until - now_ns()) * 1e-9));
  }

  std::string missing_text(double seconds) const {
    const std::vector<int> absent = roster_.absent();
    std::vector<int> silent = roster_.silent(round_);
    if (absent.empty() && silent.empty()) silent.push_back(0);  // this rank itself
    if (absent.empty())
      return formatted("{} of {} did not take part in exchange {} of the rendezvous at {} within {:g} s", ranks_text(silent),
                       roster_.world(), round_, where_, seconds);
    std::string keyless;
    for (const int r : absent)
      if (const std::string from = gate_.keyless(static_cast<uint32_t>(r)); !from.empty() && keyless.empty())
        keyless = formatted(
            "rank {} has another ISTHMUS_JOB_KEY than {}, or is of another job: who came from {} and says that it is this "
            "rank did not prove the job key; ",
            r, me(), from);
    std::string text =
        keyless + formatted(
                      "{} of {} did not arrive within {:g} s at {}; check that they were started with the same address "
                      "and world size",
                      ranks_text(absent), roster_.world(), seconds, where_);
    if (gate_.refused() > 0 && keyless.empty())
      text += formatted(" ({} clients were refused there; the last: {})", gate_.refused(), gate_.last_refused());
    return text;
  }
  std::string unread_text(double seconds) const {
    std::vector<int> slow;
    for (const auto &c : clients_)
      if (c->fd && !c->out.empty() && c->join) slow.push_back(c->rank());
    return formatted("{} of {} did not read the result of the rendezvous within {:g} s", ranks_text(slow), roster_.world(),
                     seconds);
  }

  void queue(RootClient &c, std::shared_ptr<const net::ByteVector> bytes) {
    c.out.push_back(std::move(bytes));
    flush(c);
  }
  void flush(RootClient &c) {
    if (!c.flush()) lost(c);
  }
  void tell(RootClient &c) {
    if (std::exchange(c.failed_told, true)) return;
    auto bytes = std::make_shared<net::ByteVector>();
    if (roster_.first() == 0 && failure_.code == Code::Timeout && !distributing_)  // what came
      for (const RootClient *o : roster_.elsewhere())
        if (o && o->contributed(round_)) append_result(*bytes, round_, o->hello.index, o->blobs.at(round_));
    append_failure(*bytes, failure_);
    queue(c, std::move(bytes));
  }

  // The connection of a client has ended.
  void lost(RootClient &c) {
    const bool served = c.out.empty();
    c.fd.reset();
    c.out.clear();
    // A rank that has its result may go. The next round shows whether the rank was still needed.
    const bool may_go = roster_.first() > 0 ? distributing_ && served : served && round_ > 0 && !c.contributed(round_);
    if (roster_.member(c) && !may_go) set_failure(Code::PeerLost, c.text() + " ended during the rendezvous");
  }

  void admit(net::Guest &&g) {
    auto c = std::make_unique<RootClient>();
    c->fd = std::move(g.fd);
    c->hello = g.hello;
    c->from = std::move(g.from);
    if (c->hello.version != net::kProtocolVersion) {
      set_failure(Code::Mismatch,
                  formatted("rank {} at {} speaks protocol version {}, {} at {} speaks version {}; install the "
                            "same Isthmus everywhere",
                            c->rank(), c->from, c->hello.version, me(), where_, net::kProtocolVersion));
      return;  // the handshake has told the client
    }
    if (c->hello.role != net::Role::Rendezvous) {
      ISTHMUS_WARN("refused a client: {}: it asks for no rendezvous", c->from);
      return;
    }
    clients_.push_back(std::move(c));
  }

  void joined(RootClient &c) {
    const size_t rank = c.hello.index;
    if (roster_.world() == 0 && c.hello.count >= 1 &&
        c.hello.count <= Roster::kMostRanks) {  // the first to come says how many
      roster_.settle(c.hello.count);
      start_ns_ = now_ns();
    }
    const RootClient *first = roster_.at(rank);
    if (!failure_.ok()) return tell(c);
    if (c.hello.count != static_cast<uint32_t>(roster_.world())) {
      set_failure(Code::Mismatch,
                  formatted("{} was started with world size {}, {} with {}; give all ranks the same", c.text(),
                            c.hello.count, roster_.first() > 0 ? "rank 0" : "another rank", roster_.world()));
    } else if (rank >= static_cast<size_t>(roster_.world())) {
      set_failure(Code::Mismatch, formatted("{}: its rank is outside 0 to {}", c.text(), roster_.world() - 1));
    } else if (roster_.first() > 0 && roster_.complete() && first && first->hello.process == c.hello.process) {
      auto again = std::make_shared<net::ByteVector>();  // the client's next init: this one has all its ranks, and ends soon
      net::append_frame(*again, static_cast<uint16_t>(Meet::Again), {});
      queue(c, std::move(again));
    } else if (first || rank < roster_.first()) {
      const std::string other = first ? first->text() : formatted("rank 0 (process {} on host {})", ::getpid(), host_name());
      const Status duplicate{
          Code::Mismatch,
          formatted("two processes have rank {}: {} and {}; give every process its own rank", rank, other, c.text())};
      if (!roster_.complete()) return set_failure(duplicate.code, duplicate.text);
      c.failed_told = true;  // all ranks are here, so this client is one too many, and the others go on
      auto bytes = std::make_shared<net::ByteVector>();
      append_failure(*bytes, duplicate);
      queue(c, std::move(bytes));
      ISTHMUS_WARN("refused a client: {}", duplicate.text);
    } else {
      roster_.seat(c);
    }
  }

  void on_frame(RootClient &c, uint16_t type, std::span<const std::byte> body) {
    switch (static_cast<Meet>(type)) {
      case Meet::Join:
        if (!c.join && (c.join = parse_join(body))) return joined(c);
        break;
      case Meet::Contribution: {
        const auto m = parse_contribution(body);
        if (c.join && !roster_.member(c)) return;  // a refused client that does not know yet
        if (!m || !roster_.member(c) || m->round != round_ || c.blobs.contains(m->round)) break;
        if (!std::exchange(wanted_, true) && roster_.first() == 0 && round_ > 0) start_ns_ = now_ns();
        c.blobs.emplace(m->round, Blob(m->blob.begin(), m->blob.end()));
        patience_.note(*m);
        return;
      }
      case Meet::GiveUp:
        if (roster_.member(c))
          set_failure(Code::Timeout, missing_text(waited()) + formatted("; rank {} gave up first", c.rank()));
        return;
      case Meet::Result:
      case Meet::Failure:
      case Meet::Again: break;
    }
    malformed(c, formatted("an unexpected message (type {})", type));
  }

  void malformed(RootClient &c, const std::string &what) {
    if (roster_.member(c)) return set_failure(Code::Mismatch, formatted("{} sent {} during the rendezvous", c.text(), what));
    ISTHMUS_WARN("refused a client: {}: {}", c.from, what);
    c.fd.reset();
  }

  void read(RootClient &c) {
    while (c.fd) {
      uint16_t type = 0;
      std::span<const std::byte> body;
      switch (c.reader.next(type, body)) {
        case net::FrameReader::Result::Frame: on_frame(c, type, body); continue;
        case net::FrameReader::Result::Bad:
          malformed(c, c.reader.why());
          if (c.fd) lost(c);
          return;
        case net::FrameReader::Result::More: break;
      }
      const ssize_t n = net::recv_some(c.fd.get(), c.reader.space());
      if (n > 0) c.reader.received(static_cast<size_t>(n));
      else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      else return lost(c);
    }
  }

  // Waits for something to do and does it. False at the deadline.
  bool pump(Deadline deadline) {
    std::vector<pollfd> fds{{gate_.fd(), POLLIN, 0}};
    for (const auto &c : clients_)
      fds.push_back(
          {c->fd.get(), static_cast<short>(POLLIN | (c->out.empty() ? 0 : POLLOUT)), 0});  // poll() skips a descriptor of -1
    const Deadline until = Deadline::at_ns(std::min(deadline.ns(), gate_.next_deadline_ns()));
    if (roster_.first() > 0) net::wait_events(fds, until);
    else if (::poll(fds.data(), fds.size(), until.left_ms()) < 0)
      return !deadline.passed();  // nobody interrupts this thread
    for (size_t i = 1; i < fds.size(); ++i) {
      RootClient &c = *clients_[i - 1];
      if (fds[i].revents & POLLOUT) flush(c);
      if (fds[i].revents & ~POLLOUT) read(c);
    }
    std::vector<net::Guest> guests;
    gate_.service(guests);
    for (net::Guest &g : guests) admit(std::move(g));
    std::erase_if(clients_, [&](const auto &c) { return !c->fd && !roster_.has(c.get()); });
    return !deadline.passed();
  }

  void tell_failure(Deadline deadline) {
    ISTHMUS_WARN("the rendezvous at {} failed: {}", where_, failure_.text);
    const Deadline latecomers = Deadline::at_ns(std::min(deadline.ns(), Deadline(kTellLatecomersSeconds).ns()));
    const auto told = [&] {
      return roster_.complete() || std::count_if(clients_.begin(), clients_.end(), [](const auto &c) {
                                     return c->failed_told;
                                   }) >= roster_.world() - static_cast<int>(roster_.first());
    };
    const auto tell_all = [&] {
      for (const bool own : {false, true})
        for (const auto &c : clients_)
          if (c->fd && c->join && c->is_own() == own) tell(*c);
    };
    tell_all();
    while (!told() && !latecomers.passed()) {
      pump(latecomers);
      tell_all();
    }
    // Closing with unread bytes would reset the connections, and the message might be lost. So the root ends its half, and reads until the
    // clients close.
    const Deadline hear(kHearSeconds);
    while (!flushed() && pump(hear)) {}
    for (const auto &c : clients_)
      if (c->fd) ::shutdown(c->fd.get(), SHUT_WR);
    const auto closed = [&] {
      return std::all_of(clients_.begin(), clients_.end(), [](const auto &c) { return !c->fd || !c->join; });
    };
    while (!closed() && pump(hear)) {}
  }

  std::string me() const { return roster_.first() > 0 ? "rank 0" : "the process that made the id"; }

  const std::string where_;
  Roster roster_;
  net::Gate gate_;
  std::vector<std::unique_ptr<RootClient>> clients_;
  uint32_t round_ = 0;
  bool wanted_ = false;  // one of the ranks has contributed to this round
  int64_t start_ns_ = 0;
  RoundPatience patience_;
  bool distributing_ = false;  // the results of round round_ - 1
  Status failure_;
};

}  // namespace

std::unique_ptr<Exchange> root_exchange(std::vector<UniqueFd> listeners, std::string where, int world, const Bytes16 &key,
                                        const Bytes16 &job) {
  return std::make_unique<Root>(std::move(listeners), std::move(where), world, key, job);
}

void serve_exchange(std::vector<UniqueFd> listeners, std::string where, const Bytes16 &key) {
  Root(std::move(listeners), std::move(where), 0, key).serve();
}

}  // namespace isthmus::bootstrap
