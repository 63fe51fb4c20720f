#include <algorithm>
#include <cerrno>
#include <optional>

#include "bootstrap/host.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/connect_race.hpp"
#include "net/handshake.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

// How long something else may answer: perhaps the job before this one, which is just ending.
constexpr int64_t kForeignGraceNs = 5'000'000'000;
// How long a server of a ticket may refuse. A ticket is given away once its process listens, so nobody will begin to listen later.
constexpr int64_t kRefusedGraceNs = 2'000'000'000;
constexpr double kVerdictSeconds = 5.0;  // after our deadline: so long rank 0 has to say who is missing

class RendezvousClient final : public Exchange {
 public:
  RendezvousClient(std::vector<std::string> addresses, int rank, int world, const Bytes16 &key,
                   std::optional<uint32_t> ticket, const Bytes16 &job)
      : addresses_(std::move(addresses)),
        rank_(rank),
        world_(world),
        key_(key),
        job_(job),
        ticket_(ticket),
        root_(ticket ? "the process that made the id" : "rank 0") {
    whole_root_ = ticket ? root_ : formatted("rank 0 of {}", world);
    for (const std::string &a : addresses_) where_ += (where_.empty() ? "" : ", ") + a;
  }

  std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) override {
    check_blob(mine);
    if (!failed_.ok()) throw Error(failed_);
    for (;;) {
      if (!fd_) join(deadline);
      came_.assign(static_cast<size_t>(world_), {});
      if (exchange(mine, came_, deadline)) {
        ++round_;
        patience_ = {};
        reason_ = {};
        return std::move(came_);
      }
      fd_.reset();  // "Again": rank 0 is still at the end of its last rendezvous with this rank
      reader_ = net::FrameReader(kMaxRendezvousBody);
      pause(deadline, 20'000'000);
    }
  }
  std::vector<Blob> came() override { return came_; }
  void be_patient(Patience patience) override { patience_ = patience; }
  bool give_reason(const Status &why) override {
    reason_ = why;
    return true;
  }
  // Between two rounds the root has nothing to say but that the rendezvous has failed. Whether it has left, the next round finds.
  void look() override {
    if (!failed_.ok()) throw Error(failed_);
    while (fd_) {
      uint16_t type = 0;
      std::span<const std::byte> body;
      const auto next = reader_.next(type, body);
      if (next == net::FrameReader::Result::More) {
        const ssize_t n = net::recv_some(fd_.get(), reader_.space());
        if (n <= 0) return;
        reader_.received(static_cast<size_t>(n));
        continue;
      }
      const auto status = next == net::FrameReader::Result::Frame && static_cast<Meet>(type) == Meet::Failure
                              ? parse_failure(body)
                              : std::nullopt;
      failed_ = status ? *status
                       : Status{Code::Mismatch, formatted("{} at {} sent a message (type {}) between the rounds of the "
                                                          "rendezvous",
                                                          root_, where_, type)};
      throw Error(failed_);
    }
  }

 private:
  static void pause(Deadline deadline, int64_t ns) {
    net::sleep_until(Deadline::at_ns(std::min(deadline.ns(), now_ns() + ns)));
  }

  // Connects, proves the key and introduces this rank. Tries until the deadline, because rank 0 may come later than this rank.
  void join(Deadline deadline) {
    std::string last = "no attempt was made";
    int64_t foreign_since = 0, refused_since = 0;
    for (int64_t wait = 5'000'000;; wait = std::min<int64_t>(wait * 2, 200'000'000)) {
      bool refused = ticket_.has_value();
      try {
        if (attempt(deadline, last, refused)) return;
      } catch (const Error &e) {
        if (foreign_since == 0 || e.code() != Code::Timeout) last = e.text();
        if (e.code() == Code::Auth) {
          if (foreign_since == 0) foreign_since = now_ns();
          if (other_key_ || unknown_ || deadline.passed() || now_ns() - foreign_since > kForeignGraceNs)
            fail(Code::Auth, "rank {}: {}", rank_, last);
        } else if (e.code() == Code::Mismatch) {
          fail(Code::Mismatch, "rank {}: {}", rank_, last);
        } else if (e.code() != Code::PeerLost && e.code() != Code::Timeout && e.code() != Code::System) {
          throw;
        }
      }
      refused_since = !refused ? 0 : refused_since != 0 ? refused_since : now_ns();
      if (refused_since != 0 && now_ns() - refused_since > kRefusedGraceNs)
        fail(Code::System, "rank {}: {} no longer listens at {} ({}): it has ended", rank_, root_, where_, last);
      if (deadline.passed() && foreign_since != 0) fail(Code::Auth, "rank {}: {}", rank_, last);
      if (deadline.passed())
        fail(
            Code::Timeout,
            "rank {}: {} did not appear within {:g} s at {} ({}); check that it runs, with the same address and world size, "
            "and that no firewall stands between",
            rank_, whole_root_, deadline.seconds(), where_, last);
      pause(deadline, wait);
    }
  }

  // Tries the addresses side by side. An address that is somebody else's does not hide the others. `refused` falls where something else
  // than a refusal came.
  bool attempt(Deadline deadline, std::string &last, bool &refused) {
    std::vector<net::Address> all;
    std::vector<const std::string *> texts;
    for (const std::string &text : addresses_) {
      const net::HostPort hp = net::split_host_port(text);
      for (const net::Address &address : net::resolve(hp.host, hp.port)) {
        all.push_back(address);
        texts.push_back(&text);
      }
    }
    // For each step anew: somebody who accepts the connection and says nothing takes the time of no other address.
    const auto soon = [&] { return Deadline::at_ns(std::min(deadline.ns(), Deadline(kConnectSeconds).ns())); };
    const size_t tried = all.size();
    size_t strangers = 0;
    net::ConnectRace race(all);
    std::optional<Error> trouble;
    UniqueFd fd;
    for (size_t which = 0; race.next(soon(), fd, which);) {
      refused = false;
      try {
        const Deadline greeted = addresses_.size() > 1 ? soon() : deadline;
        if (!greet(std::move(fd), race.address(which), greeted, deadline, last)) continue;
        where_ = *texts[which];
        return true;
      } catch (const net::KeyError &e) {
        other_key_ = job_ != Bytes16{} && e.job() == job_;
        if (other_key_)
          fail(Code::Auth, "{} at {} has another ISTHMUS_JOB_KEY than this rank; give all ranks of the job the same one",
               root_, race.address(which).text());
        trouble = e;
        ++strangers;
        if (ticket_)
          trouble = Error(Code::Auth,
                          formatted("{} does not know this ticket: it was not made by the process that listens there now",
                                    race.address(which).text()));
      } catch (const Error &e) {
        if (e.code() == Code::Mismatch) throw;
        if (!trouble || e.code() == Code::Auth) trouble = e;
      }
    }
    unknown_ = ticket_ && strangers == tried;
    if (trouble) throw Error(*trouble);
    refused &= race.nobody_listens();
    if (const std::string why = race.why(); !why.empty()) last = why;
    return false;
  }

  bool greet(UniqueFd fd, const net::Address &address, Deadline greeted, Deadline deadline, std::string &last) {
    net::Hello hello;
    hello.role = net::Role::Rendezvous;
    hello.index = static_cast<uint32_t>(rank_);
    hello.count = static_cast<uint32_t>(world_);
    hello.process = rendezvous_process();
    hello.ticket = ticket_.value_or(0);
    net::dial(fd.get(), hello, key_, formatted("{} at {}", root_, address.text()), greeted);
    net::ByteVector message;
    append_join(message, {::getpid(), host_name()});
    if (net::send_all(fd.get(), message, deadline) != net::Io::Ok) {
      last = address.text() + " closed the connection";
      return false;
    }
    fd_ = std::move(fd);
    return true;
  }

  // One round. False: rank 0 asks this rank to come again.
  bool exchange(const Blob &mine, std::vector<Blob> &blobs, Deadline deadline) {
    net::ByteVector out;
    append_contribution(out, round_, mine, patience_);
    size_t sent = 0;
    std::vector<bool> got(blobs.size());
    size_t missing = blobs.size();
    Deadline until = deadline;
    bool gave_up = false;
    while (missing > 0) {
      uint16_t type = 0;
      std::span<const std::byte> body;
      const auto next = reader_.next(type, body);
      if (next == net::FrameReader::Result::Bad) fail(Code::Mismatch, "{} at {} sent {}", root_, where_, reader_.why());
      if (next == net::FrameReader::Result::Frame) {
        if (static_cast<Meet>(type) == Meet::Again && round_ == 0) return false;
        if (static_cast<Meet>(type) == Meet::Failure)
          if (const auto status = parse_failure(body)) throw Error(status->code, status->text);
        const auto m = static_cast<Meet>(type) == Meet::Result ? parse_result(body) : std::nullopt;
        if (!m || m->round != round_ || m->rank >= blobs.size() || got[m->rank])
          fail(Code::Mismatch, "{} at {} sent a malformed message (type {}) during the rendezvous", root_, where_, type);
        got[m->rank] = true;
        blobs[m->rank].assign(m->blob.begin(), m->blob.end());
        --missing;
        continue;
      }
      if (sent < out.size()) {
        const ssize_t n = net::send_some(fd_.get(), std::span<const std::byte>(out).subspan(sent));
        sent = n < 0 ? out.size() : sent + static_cast<size_t>(n);  // where a send fails, reading tells why
      }
      const ssize_t n = net::recv_some(fd_.get(), reader_.space());
      if (n > 0) {
        reader_.received(static_cast<size_t>(n));
        continue;
      }
      if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
        fail(Code::PeerLost, "{} at {} left the rendezvous; it has probably ended", root_, where_);
      const short events = static_cast<short>(POLLIN | (sent < out.size() ? POLLOUT : 0));
      if (net::wait_events(fd_.get(), events, until) != 0) continue;
      if (gave_up)
        fail(Code::Timeout,
             "rank {}: no answer from {} at {} within {:g} s; other ranks may be missing, or it is busy or stopped", rank_,
             whole_root_, where_, deadline.seconds());
      gave_up = true;  // rank 0 knows who is missing, and answers at once unless stopped or busy elsewhere
      until = Deadline(kVerdictSeconds);
      if (sent == out.size()) {
        out.clear();
        append_give_up(out, round_, reason_);
        sent = 0;
      }
    }
    return true;
  }

  const std::vector<std::string> addresses_;
  const int rank_, world_;
  const Bytes16 key_, job_;
  bool other_key_ = false;                // an end that holds another key names this job
  bool unknown_ = false;                  // at all addresses of the ticket somebody answers, and nobody knows it
  const std::optional<uint32_t> ticket_;  // of a process that listens before anybody connects; empty: the root is rank 0
  const std::string root_;                // the other end, in messages
  std::string whole_root_;                // the other end with the number of ranks
  std::vector<Blob> came_;                // in the round that goes on, or in the one that failed
  std::string where_;
  UniqueFd fd_;
  net::FrameReader reader_{kMaxRendezvousBody};
  uint32_t round_ = 0;
  Patience patience_;  // of this round
  Status reason_;      // what has failed here before this round
  Status failed_;      // what look() has heard
};

}  // namespace

std::unique_ptr<Exchange> client_exchange(std::vector<std::string> addresses, int rank, int world, const Bytes16 &key,
                                          std::optional<uint32_t> ticket, const Bytes16 &job) {
  return std::make_unique<RendezvousClient>(std::move(addresses), rank, world, key, ticket, job);
}

}  // namespace isthmus::bootstrap
