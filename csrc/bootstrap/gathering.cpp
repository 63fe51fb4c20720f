#include "bootstrap/gathering.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <new>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "bootstrap/host.hpp"
#include "net/shortage.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kTellLatecomersNs = 3'000'000'000;  // after a failure: ranks that arrive within this time are told why
constexpr int64_t kHearNs = 250'000'000;              // the time that the others have to read the failure and close
constexpr int64_t kHearServedNs = 5'000'000'000;      // the same where nobody waits for the root
constexpr const char *kOneWayForAll = "start all hosts with `isthmus run`, or set ISTHMUS_DISABLE=1 for all ranks";

double tenths_since(int64_t start_ns) {  // seconds
  return 0.1 * std::round(static_cast<double>(now_ns() - start_ns) * 1e-8);
}

std::shared_ptr<const net::ByteVector> failure_message(const Status &failure) {
  auto bytes = std::make_shared<net::ByteVector>();
  append_failure(*bytes, failure);
  return bytes;
}

// Why the ranks that are missing may be missing: the gate refused somebody who says that it is one of them.
std::string keyless_text(const net::Gate &gate, const std::vector<int> &absent) {
  for (const int r : absent)
    if (const std::string from = gate.keyless(static_cast<uint32_t>(r)); !from.empty())
      return formatted(
          "rank {} has another ISTHMUS_JOB_KEY than rank 0, or is of another job: who came from {} and says that it is this "
          "rank did not prove the job key; ",
          r, from);
  return {};
}

std::string silent_text(const Roster &roster, uint32_t round, const std::string &where, double seconds) {
  std::vector<int> silent = roster.silent(round);
  if (silent.empty()) silent.push_back(0);  // this rank itself
  return formatted("{} of {} did not take part in exchange {} of the rendezvous at {} within {:g} s", ranks_text(silent),
                   roster.world(), round, where, seconds);
}

// "1 host: a", "3 hosts: a, b, c"; of many the first.
std::string hosts_text(const Roster &roster) {
  constexpr size_t kNamed = 8;
  std::vector<std::string> hosts;
  for (const RootClient *c : roster.elsewhere())
    if (c && c->join && std::find(hosts.begin(), hosts.end(), c->join->hostname) == hosts.end())
      hosts.push_back(c->join->hostname);
  std::string text = formatted("{} host{}: ", hosts.size(), hosts.size() == 1 ? "" : "s");
  for (size_t n = 0; n < std::min(hosts.size(), kNamed); ++n) text += (n == 0 ? "" : ", ") + hosts[n];
  return hosts.size() > kNamed ? text + ", and others" : text;
}

std::string elsewhere_text(const Roster &roster, const Elsewhere &elsewhere, const std::string &where) {
  const size_t n = elsewhere.connections();
  return formatted(
      "{} of {} did not come to where the communicator's ranks meet ({}), and {} connection{} came to the listener that the "
      "vendor's library has for the id ({}), as from ranks that run without Isthmus: {}. The ranks that came, from {}, wait "
      "no longer",
      ranks_text(roster.absent()), roster.world(), where, n, n == 1 ? "" : "s", elsewhere.at(), kOneWayForAll,
      hosts_text(roster));
}

}  // namespace

Gathering::Gathering(std::string where, int world, const net::Gate &gate)
    : where_(std::move(where)), gate_(gate), refused_before_(gate.refused()), roster_(world) {}

// ---- rounds --------------------------------------------------------------------------------------------------------------------------

void Gathering::begin() noexcept {
  start_ns_ = now_ns();
  distributing_ = false;
}

bool Gathering::gathered() {
  if (const std::string shortage = roster_.serves_all() ? std::string() : net::lasting_shortage();
      !shortage.empty() && !roster_.complete()) {
    set_failure(Code::Resource, formatted("rank 0 is {}, and cannot take the connections of the other ranks: raise that "
                                          "limit, or close what the program holds open",
                                          shortage));
    return false;
  }
  const auto ranks = roster_.elsewhere();
  for (const RootClient *c : ranks) {
    if (!c) return false;
    if (c->contributed(round_)) continue;
    // Where nobody asks for another round, a rank that leaves is not missed.
    const bool asked = !roster_.serves_all() || std::any_of(ranks.begin(), ranks.end(), [&](const RootClient *o) {
      return o && o->contributed(round_);
    });
    if (!c->fd && asked) set_failure(Code::PeerLost, c->text() + " left the rendezvous; it has probably ended");
    return false;
  }
  return roster_.world() > 0;
}

std::vector<Blob> Gathering::distribute(const Blob *mine) {
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
    for (RootClient *c : roster_.elsewhere()) {
      if (c->is_own() != own) continue;
      c->out.push_back(result);
      flush(*c);
    }
  return blobs;
}

bool Gathering::flushed() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto &c) { return !c->fd || c->out.empty(); });
}

void Gathering::time_out(double seconds, const Status &own) {
  if (!distributing_ && !own.ok()) return set_failure(own.code, formatted("rank 0 gave up: {}", own.text));
  if (!distributing_) return set_failure(Code::Timeout, missing_text(seconds));
  std::vector<int> slow;
  for (const auto &c : clients_)
    if (c->fd && !c->out.empty() && c->join) slow.push_back(c->rank());
  set_failure(Code::Timeout, formatted("{} of {} did not read the result of the rendezvous within {:g} s", ranks_text(slow),
                                       roster_.world(), seconds));
}

bool Gathering::serve() {
  for (;;) {
    if (!failure_.ok()) return tell_failure(Deadline::at_ns(RoundPatience::kNever));
    if (distributing_ && !flushed()) return false;
    distributing_ = false;
    if (gathered()) {
      distribute(nullptr);
      continue;
    }
    if (!failure_.ok()) continue;  // gathered() has found that a rank is lost
    if (roster_.left()) return true;
    const int64_t now = now_ns();
    if (now >= patience_.tell_ns()) {
      tell_who_is_missing();
      patience_.told();
    }
    if (now >= elsewhere_.until_ns(roster_.missing(), came_ns_)) {
      set_failure(Code::Timeout, elsewhere_text(roster_, elsewhere_, where_));
      continue;
    }
    if (now < patience_.until_ns()) return false;
    set_failure(Code::Timeout, missing_text(tenths_since(start_ns_)) + "; those that came wait no longer (ISTHMUS_CENSUS)");
  }
}

int64_t Gathering::wakes_ns() const noexcept {
  if (!failure_.ok()) return ending_until_ns_;
  if (distributing_) return RoundPatience::kNever;
  return std::min({patience_.until_ns(), patience_.tell_ns(), elsewhere_.until_ns(roster_.missing(), came_ns_)});
}

// ---- failure -------------------------------------------------------------------------------------------------------------------------

void Gathering::set_failure(Code code, std::string text) {
  if (failure_.ok()) failure_ = {code, std::move(text)};  // the first failure is the cause of the others
}

// The ranks that came wait for long, and none of them knows for whom.
void Gathering::tell_who_is_missing() const {
  const std::vector<int> absent = roster_.absent();
  if (absent.empty()) return;
  const int64_t until = patience_.until_ns();
  ISTHMUS_WARN(
      "{} of {} did not come within {:g} s to where a communicator's ranks meet ({}), and the others wait, {}. Such a "
      "rank may be late or have ended, or run without Isthmus: {}",
      ranks_text(absent), roster_.world(), static_cast<double>(RoundPatience::kTellNs) * 1e-9, where_,
      until == RoundPatience::kNever
          ? std::string("until ISTHMUS_TIMEOUT")
          : formatted("for up to {:.0f} s more (ISTHMUS_CENSUS)", static_cast<double>(until - now_ns()) * 1e-9),
      kOneWayForAll);
}

std::string Gathering::missing_text(double seconds) const {
  const std::vector<int> absent = roster_.absent();
  if (absent.empty()) return silent_text(roster_, round_, where_, seconds);
  const std::string keyless = roster_.serves_all() ? std::string() : keyless_text(gate_, absent);
  const uint64_t refused = gate_.refused() - refused_before_;
  std::string text =
      keyless + formatted(
                    "{} of {} did not arrive within {:g} s at {}; check that they were started with the same address "
                    "and world size",
                    ranks_text(absent), roster_.world(), seconds, where_);
  if (refused > 0 && keyless.empty() && !roster_.serves_all())  // else they may be of another ticket
    text += formatted(" ({} clients were refused there; the last: {})", refused, gate_.last_refused());
  if (const std::string shortage = net::lasting_shortage(); !shortage.empty())
    text += formatted(" (the process there is {}, and cannot take connections)", shortage);
  return text;
}

void Gathering::tell(RootClient &c) {
  if (std::exchange(c.failed_told, true)) return;
  if (roster_.serves_all() && failure_.code == Code::Timeout && !distributing_) {  // what came
    auto came = std::make_shared<net::ByteVector>();
    for (const RootClient *o : roster_.elsewhere())
      if (o && o->contributed(round_)) append_result(*came, round_, o->hello.index, o->blobs.at(round_));
    if (!came->empty()) c.out.push_back(std::move(came));
  }
  c.out.push_back(failure_message(failure_));
  flush(c);
}

bool Gathering::tell_failure(Deadline deadline) {
  for (const bool own : {false, true})
    for (const auto &c : clients_)
      if (c->fd && c->join && c->is_own() == own) tell(*c);
  const auto told = [&] {
    return roster_.complete() || std::count_if(clients_.begin(), clients_.end(), [](const auto &c) {
                                   return c->failed_told;
                                 }) >= roster_.world() - static_cast<int>(roster_.first());
  };
  // Who has not said its name may never do so, and then only a root that nobody waits for has the time.
  const auto closed = [&] {
    return std::all_of(clients_.begin(), clients_.end(),
                       [&](const auto &c) { return !c->fd || (!c->join && !roster_.serves_all()); });
  };
  if (ending_ == Ending::NotYet) {
    ISTHMUS_WARN("the rendezvous at {} failed: {}", where_, failure_.text);
    ending_ = Ending::Latecomers;
    ending_until_ns_ = roster_.serves_all() ? now_ns() : std::min(deadline.ns(), now_ns() + kTellLatecomersNs);
  }
  if (ending_ == Ending::Latecomers) {
    if (!told() && now_ns() < ending_until_ns_) return false;
    ending_ = Ending::Flushing;
    ending_until_ns_ = now_ns() + (roster_.serves_all() ? kHearServedNs : kHearNs);
  }
  if (ending_ == Ending::Flushing) {
    if (!flushed() && now_ns() < ending_until_ns_) return false;
    // Closing with unread bytes would reset the connections, and the message might be lost. So the root ends its half, and reads until the
    // clients close.
    for (const auto &c : clients_)
      if (c->fd && (c->failed_told || !roster_.serves_all())) ::shutdown(c->fd.get(), SHUT_WR);
    ending_ = Ending::Closing;
  }
  return closed() || now_ns() >= ending_until_ns_;
}

// ---- clients -------------------------------------------------------------------------------------------------------------------------

void Gathering::watch(std::vector<pollfd> &fds) const {
  for (const auto &c : clients_)  // poll() takes no more entries than a process may have descriptors
    if (c->fd) fds.push_back({c->fd.get(), static_cast<short>(POLLIN | (c->out.empty() ? 0 : POLLOUT)), 0});
}

size_t Gathering::hear(std::span<const pollfd> fds) {
  size_t heard = 0;
  for (const auto &client : clients_) {
    RootClient &c = *client;
    if (!c.fd) continue;
    const pollfd &p = fds[heard++];
    ISTHMUS_ASSERT(p.fd == c.fd.get(), "what one client says closes no other client's connection");
    try {
      if (p.revents & POLLOUT) flush(c);
      if (p.revents & ~POLLOUT) read(c);
    } catch (const std::bad_alloc &) {
      set_failure(Code::Resource, formatted("there is no memory for what {} sends", c.text()));
      lost(c);
    }
  }
  std::erase_if(clients_, [&](const auto &c) { return !c->fd && !roster_.has(c.get()); });
  // Behind all that came with it: where that completes the round, nobody is missing, and the round's result tells more. But a root that is not in the
  // round yet, and may wait for just this rank, hears at once why it has left.
  const RootClient *quitter = nullptr;  // one that knows why goes before one that has only waited
  for (const auto &c : clients_)
    if (c->gave_up && (!quitter || (quitter->gave_up->ok() && !c->gave_up->ok()))) quitter = c.get();
  const bool outside = distributing_ && !roster_.serves_all();
  if (quitter && (!roster_.all_contributed(round_) || (outside && !quitter->gave_up->ok()))) {
    const Status &why = *quitter->gave_up;
    // Who came late because another rank did not answer knows more than the root, to whom all that are late look alike.
    if (!why.ok()) set_failure(why.code, formatted("rank {} gave up: {}", quitter->rank(), why.text));
    else if (const double seconds = tenths_since(start_ns_); !outside && (seconds >= 1 || !roster_.absent().empty()))
      set_failure(Code::Timeout, formatted("{}; rank {} gave up first", missing_text(seconds), quitter->rank()));
    else  // the root itself has only just come, or has not
      set_failure(Code::Timeout,
                  formatted("{} of {} did not take part in exchange {} of the rendezvous at {} before the "
                            "deadline of rank {}",
                            ranks_text(roster_.silent(round_)), roster_.world(), round_, where_, quitter->rank()));
  }
  for (const auto &c : clients_) c->gave_up.reset();
  return heard;
}

std::vector<UniqueFd> Gathering::untold() {
  std::vector<UniqueFd> out;
  for (const auto &c : clients_)
    if (c->fd && !c->failed_told) out.push_back(std::move(c->fd));
  return out;
}

void Gathering::flush(RootClient &c) {
  if (!c.flush()) lost(c);
}

// The connection of a client has ended.
void Gathering::lost(RootClient &c) {
  const bool served = c.out.empty();
  c.fd.reset();
  c.out.clear();
  // A rank that has its result may go. The next round shows whether the rank was still needed.
  const bool may_go = roster_.serves_all() ? served && round_ > 0 && !c.contributed(round_) : distributing_ && served;
  if (c.gave_up) return;  // it has said why
  if (roster_.member(c) && !may_go) set_failure(Code::PeerLost, c.text() + " ended during the rendezvous");
}

void Gathering::admit(net::Guest &&g) {
  auto c = std::make_unique<RootClient>();
  c->fd = std::move(g.fd);
  c->hello = g.hello;
  c->from = std::move(g.from);
  if (c->hello.version != net::kProtocolVersion) {
    set_failure(Code::Mismatch,
                formatted("rank {} at {} speaks protocol version {}, {} at {} speaks version {}; install the "
                          "same Isthmus everywhere",
                          c->rank(), c->from, c->hello.version,
                          roster_.serves_all() ? "the process that made the id" : "rank 0", where_, net::kProtocolVersion));
    return;  // the handshake has told the client
  }
  if (c->hello.role != net::Role::Rendezvous) {
    ISTHMUS_WARN("refused a client: {}: it asks for no rendezvous", c->from);
    return;
  }
  clients_.push_back(std::move(c));
}

void Gathering::joined(RootClient &c) {
  const size_t rank = c.hello.index;
  if (roster_.world() == 0 && c.hello.count >= 1 && c.hello.count <= Roster::kMostRanks) {  // the first says how many
    roster_.settle(c.hello.count);
    start_ns_ = now_ns();
  }
  const RootClient *first = roster_.at(rank);
  if (!failure_.ok()) return tell(c);
  if (roster_.serves_all() && roster_.left()) return;  // it is over: serve() finds that, and the client is told
  if (c.hello.count != static_cast<uint32_t>(roster_.world())) {
    set_failure(Code::Mismatch, formatted("{} was started with world size {}, {} with {}; give all ranks the same", c.text(),
                                          c.hello.count, roster_.serves_all() ? "another rank" : "rank 0", roster_.world()));
  } else if (rank >= static_cast<size_t>(roster_.world())) {
    set_failure(Code::Mismatch, formatted("{}: its rank is outside 0 to {}", c.text(), roster_.world() - 1));
  } else if (!roster_.serves_all() && roster_.complete() && first && first->hello.process == c.hello.process) {
    auto again = std::make_shared<net::ByteVector>();  // the client's next init: this one has all its ranks, and ends soon
    net::append_frame(*again, static_cast<uint16_t>(Meet::Again), {});
    c.out.push_back(std::move(again));
    flush(c);
  } else if (first || rank < roster_.first()) {
    const std::string other = first ? first->text() : formatted("rank 0 (process {} on host {})", ::getpid(), host_name());
    const Status duplicate{
        Code::Mismatch,
        formatted("two processes have rank {}: {} and {}; give every process its own rank", rank, other, c.text())};
    if (!roster_.complete()) return set_failure(duplicate.code, duplicate.text);
    c.failed_told = true;  // all ranks are here, so this client is one too many, and the others go on
    c.out.push_back(failure_message(duplicate));
    flush(c);
    ISTHMUS_WARN("refused a client: {}", duplicate.text);
  } else {
    roster_.seat(c);
    came_ns_ = now_ns();
  }
}

void Gathering::on_frame(RootClient &c, uint16_t type, std::span<const std::byte> body) {
  switch (static_cast<Meet>(type)) {
    case Meet::Join:
      if (!c.join && (c.join = parse_join(body))) return joined(c);
      break;
    case Meet::Contribution: {
      const auto m = parse_contribution(body);
      if (c.join && !roster_.member(c)) return;  // a refused client that does not know yet
      if (!m || !roster_.member(c) || m->round != round_ || c.blobs.contains(m->round)) break;
      if (!std::exchange(wanted_, true) && roster_.serves_all() && round_ > 0) start_ns_ = now_ns();
      c.blobs.emplace(m->round, Blob(m->blob.begin(), m->blob.end()));
      patience_.note(*m);
      return;
    }
    case Meet::GiveUp: {
      auto m = parse_give_up(body);
      if (!m) break;
      // Of a round that is over: the result is on its way to the client, which reads it still.
      if (roster_.member(c) && m->round == round_) c.gave_up = std::move(m->why);
      return;
    }
    case Meet::Result:
    case Meet::Failure:
    case Meet::Again:
    case Meet::Enter:
    case Meet::Welcome:
    case Meet::Made:
    case Meet::Kept: break;
  }
  malformed(c, formatted("an unexpected message (type {})", type));
}

void Gathering::malformed(RootClient &c, const std::string &what) {
  if (roster_.member(c)) return set_failure(Code::Mismatch, formatted("{} sent {} during the rendezvous", c.text(), what));
  ISTHMUS_WARN("refused a client: {}: {}", c.from, what);
  c.fd.reset();
}

void Gathering::read(RootClient &c) {
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

}  // namespace isthmus::bootstrap
