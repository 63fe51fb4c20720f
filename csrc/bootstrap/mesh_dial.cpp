#include "bootstrap/mesh_dial.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <optional>

#include "base/error.hpp"
#include "base/log.hpp"
#include "bootstrap/control_wire.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/side_by_side.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr double kAttemptSeconds = 10;  // one dialogue with a process that accepted the connection
constexpr int64_t kGoneLocalNs = 250'000'000, kGoneNs = 1'000'000'000;  // refused for so long: nobody listens there any more
constexpr int64_t kKeyGraceNs = 5'000'000'000;  // another process has the peer's address for so long: the peer is not there

Deadline at_most(Deadline deadline, double seconds) {
  return Deadline::at_ns(std::min(deadline.ns(), Deadline(seconds).ns()));
}

// Whether the peer itself has answered, and has not learned the key yet. It may be as late as it likes: the deadline is for that.
bool learns_key(const Error &error, const Endpoint &e) {
  const auto *unknown = dynamic_cast<const net::KeyError *>(&error);
  return unknown && unknown->process() == e.process;
}

bool only_loopback(const Endpoint &e) {
  const std::vector<net::Address> all = addresses_of(e);
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const net::Address &a) { return a.loopback(); });
}

[[noreturn]] void fail_out_of_reach(const Endpoint &e) {
  fail(Code::Config,
       "{} listens only at loopback addresses, which this host cannot reach: set ISTHMUS_INTERFACE there to an interface "
       "that leads to the other hosts",
       process_text(e));
}

}  // namespace

std::vector<net::Address> addresses_of(const Endpoint &e) {
  std::vector<net::Address> out;
  for (const std::string &text : e.tcp) try {
      out.push_back(net::numeric_address(text));
    } catch (const Error &error) {
      if (error.code() != Code::Argument) throw;
    }
  return out;
}

Dialer::Dialer(const Endpoint &self, const ArenaOffer &arena, std::string congestion)
    : self_(self), arena_(arena), congestion_(std::move(congestion)) {
  if (congestion_.empty()) return;
  const UniqueFd any(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (const int error = any ? net::use_congestion(any.get(), congestion_) : errno; error != 0)
    fail(Code::Config, "ISTHMUS_TCP_CONGESTION={}: {}; this host allows: {}", congestion_,
         error == ENOENT  ? "the kernel has no such congestion control"
         : error == EPERM ? "this process may not have it"
                          : system_text("TCP_CONGESTION", error),
         net::allowed_congestion());
}

void Dialer::prepare(int data) const {
  if (congestion_.empty()) return;
  if (const int error = net::use_congestion(data, congestion_); error != 0)
    ISTHMUS_WARN("a data connection goes on without ISTHMUS_TCP_CONGESTION={}: {}", congestion_,
                 system_text("TCP_CONGESTION", error));
}

// Two hosts that both listen at loopback may be one host all the same, as containers that share a network are.
bool Dialer::out_of_reach(const Endpoint &e) const {
  return e.host != self_.host && only_loopback(e) && !only_loopback(self_);
}

const char *Dialer::why_gone(const Endpoint &e) const {
  return e.host == self_.host || !only_loopback(e) ? "it has probably ended"
                                                   : "it has probably ended, or it is on another host: it listens only at "
                                                     "loopback addresses (set ISTHMUS_INTERFACE there)";
}

bool Dialer::gone(const Endpoint &e) const {
  UniqueFd fd;
  const bool local = e.host == self_.host;
  if (out_of_reach(e)) return false;  // who refuses is on this host; the peer may still dial
  if (local && net::connect_unix(e.unix_name, Deadline(0.1), fd) != ECONNREFUSED) return false;
  const std::vector<net::Address> addresses = addresses_of(e);
  for (const net::Address &address : addresses)
    if (net::connect_tcp(address, Deadline(0.1), fd) != ECONNREFUSED) return false;
  return local || !addresses.empty();
}

bool Dialer::connect_as(const Endpoint &e, net::ConnectRace &race, const Bytes16 &key, net::Hello hello, Deadline deadline,
                        UniqueFd &fd, size_t &which) const {
  hello.process = self_.process;
  std::exception_ptr trouble;
  bool of_key = false;
  while (race.next(at_most(deadline, kConnectSeconds), fd, which)) {
    try {
      if (net::dial(fd.get(), hello, key, process_text(e), at_most(deadline, kAttemptSeconds)).process == e.process)
        return true;
      fail(Code::PeerLost, "another process answers at {}", race.address(which).text());
    } catch (const Error &error) {
      if (error.code() != Code::PeerLost && error.code() != Code::Timeout && error.code() != Code::Auth) throw;
      if (trouble && (error.code() != Code::Auth || (of_key && !learns_key(error, e)))) continue;
      trouble = std::current_exception();
      of_key = error.code() == Code::Auth;
    }
  }
  if (trouble) std::rethrow_exception(trouble);
  return false;
}

Arrival Dialer::control(const Endpoint &e, const Bytes16 &key, Deadline deadline, const Look &look) const {
  const bool local = e.host == self_.host;
  int64_t refused_since = 0, key_since = 0;
  std::string last = "no attempt was made", unshared = "it is on another host";
  for (int64_t pause = 2'000'000;; pause = std::min<int64_t>(pause * 2, 100'000'000)) {
    bool refused = false, absent = false;  // absent: the peer has no socket on this host
    try {
      UniqueFd fd;
      const int error = local ? net::connect_unix(e.unix_name, deadline, fd) : EAFNOSUPPORT;
      net::Credentials c;
      if (error == 0 && net::peer_credentials(fd.get(), c) && c.uid == ::geteuid())
        return this->local(e, key, std::move(fd), at_most(deadline, kAttemptSeconds));
      if (error == 0) unshared = formatted("it belongs to user {}, we to user {}", c.uid, ::geteuid());
      // Two hosts may have one identity (a virtual machine and its copy). A peer without a socket here may still answer by TCP.
      else if ((absent = error == ECONNREFUSED)) unshared = "its socket is not on this host, whatever it says of itself";
      else if (local) unshared = system_text("Unix socket", error);
      last = unshared;
      net::ConnectRace race(addresses_of(e));
      size_t which = 0;
      if (connect_as(e, race, key, {}, deadline, fd, which)) {
        const Bytes16 token = net::random16();
        net::ByteVector message;
        net::append_frame(message, static_cast<uint16_t>(Own::Intro), encode(Intro{0, token, self_}));
        if (net::send_all(fd.get(), message, at_most(deadline, kAttemptSeconds)) != net::Io::Ok)
          fail(Code::PeerLost, "{} closed the connection", race.address(which).text());
        Arrival made{std::move(fd), e, false, {}, net::FrameReader(), token};
        made.arena.why = unshared;
        auto &tcp = made.endpoint.tcp;
        if (const auto way = std::find(tcp.begin(), tcp.end(), race.address(which).text()); way != tcp.end())
          std::swap(tcp.front(), *way);  // data goes the same way
        return made;
      }
      last = race.why();
      refused = race.nobody_listens();
    } catch (const Error &error) {
      refused = absent && error.code() == Code::PeerLost;  // another process has the peer's port
      // A refused key explains more than the end of the time.
      if (key_since == 0 || error.code() != Code::Timeout) last = error.text();
      if (error.code() == Code::Auth) {
        if (key_since == 0) key_since = now_ns();
        if (now_ns() - key_since > kKeyGraceNs && !learns_key(error, e)) throw;
      } else if (error.code() != Code::PeerLost && error.code() != Code::Timeout) {
        throw;
      }
    }
    if (!refused) refused_since = 0;
    else if (refused_since == 0) refused_since = now_ns();
    else if (now_ns() - refused_since > (local ? kGoneLocalNs : kGoneNs))
      fail(Code::PeerLost, "{} is no longer there ({}); {}", process_text(e), last, why_gone(e));
    if (refused_since != 0 && out_of_reach(e)) fail_out_of_reach(e);
    if (deadline.passed()) {
      if (out_of_reach(e)) fail_out_of_reach(e);
      const std::string text =
          formatted("could not connect to {} within {:g} s: {}", process_text(e), deadline.seconds(), last);
      throw Error(key_since != 0 ? Code::Auth : Code::Timeout, text);
    }
    if (look) look();
    net::sleep_until(Deadline::at_ns(std::min(deadline.ns(), now_ns() + pause)));
  }
}

Arrival Dialer::local(const Endpoint &e, const Bytes16 &key, UniqueFd fd, Deadline deadline) const {
  const std::string to = process_text(e);
  const auto check = [&](net::Io io) {
    if (io == net::Io::Timeout) fail(Code::Timeout, "{} did not finish the greeting in time", to);
    if (io != net::Io::Ok) fail(Code::PeerLost, "{} closed the connection inside the greeting", to);
  };
  net::Hello hello;
  hello.process = self_.process;
  if (net::dial(fd.get(), hello, key, to, deadline).process != e.process)
    fail(Code::PeerLost, "another process answers for {}", to);
  const Bytes16 token = net::random16();
  net::ByteVector message;
  net::append_frame(message, static_cast<uint16_t>(Own::Intro), encode(Intro{arena_.bytes, token, self_}));
  check(net::send_with_fd(fd.get(), message, arena_.fd, deadline));

  net::FrameReader reader;
  UniqueFd passed;
  uint16_t type = 0;
  std::span<const std::byte> body;
  net::FrameReader::Result r;
  while ((r = reader.next(type, body)) == net::FrameReader::Result::More) {
    const ssize_t n = net::recv_with_fd(fd.get(), reader.space(), passed);
    if (n > 0) reader.received(static_cast<size_t>(n));
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) check(net::Io::Closed);
    else if (net::wait_events(fd.get(), POLLIN, deadline) == 0) check(net::Io::Timeout);
  }
  const auto attach =
      r == net::FrameReader::Result::Frame && type == static_cast<uint16_t>(Own::Attach) ? parse_attach(body) : std::nullopt;
  if (!attach) fail(Code::Mismatch, "{} answered the greeting with a malformed message", to);
  PeerArena theirs = map_peer_arena(passed, attach->arena_bytes, e.process);
  agree(theirs, arena_, attach->nonce, attach->why);
  message.clear();
  net::append_frame(message, static_cast<uint16_t>(Own::Ready), encode(Ready{theirs.nonce, theirs.why}));
  check(net::send_all(fd.get(), message, deadline));
  return {std::move(fd), e, true, std::move(theirs), std::move(reader), token};
}

bool Dialer::stream(const Peer &peer, const Bytes16 &key, const std::vector<net::Address> &addresses,
                    const StreamNumber &number, Deadline deadline, DialedStream &out, std::string &why) const {
  net::Hello hello;
  hello.role = net::Role::Data;
  hello.index = number.index;
  hello.count = number.count;
  net::ConnectRace race(addresses);
  size_t which = 0;
  if (!connect_as(peer.endpoint, race, key, hello, deadline, out.fd, which)) {
    why = race.why();
    return false;
  }
  out.address = race.address(which);
  prepare(out.fd.get());
  net::ByteVector intro;
  net::append_frame(intro, static_cast<uint16_t>(Own::Stream), encode(StreamIntro{peer.token, number.generation}));
  if (net::send_all(out.fd.get(), intro, at_most(deadline, kAttemptSeconds)) != net::Io::Ok)
    fail(Code::PeerLost, "{} closed the connection", process_text(peer.endpoint));
  return true;
}

UniqueFd Dialer::control_again(const Endpoint &e, const Bytes16 &key, uint32_t number, Deadline deadline) const {
  net::Hello hello;
  hello.index = number;
  net::ConnectRace race(addresses_of(e));
  size_t which = 0;
  UniqueFd fd;
  if (!connect_as(e, race, key, hello, deadline, fd, which)) fail(Code::PeerLost, "{}", race.why());
  return fd;
}

DialedStream Dialer::stream_to(const Peer &peer, const Bytes16 &key, std::span<const net::Address> addresses,
                               const StreamNumber &number, Deadline deadline, const Look &look) const {
  std::string last;
  for (;;) {
    try {
      if (DialedStream one; stream(peer, key, {addresses.begin(), addresses.end()}, number, deadline, one, last)) return one;
    } catch (const Error &error) {
      if (error.code() != Code::PeerLost && error.code() != Code::Timeout && !learns_key(error, peer.endpoint)) throw;
      last = error.text();
    }
    if (peer.lost.load(std::memory_order_acquire)) throw Error(Code::PeerLost, peer.lost_text());
    if (deadline.passed())
      fail(Code::Timeout, "could not open data stream {} of {} to {} within {:g} s: {}", number.index, number.count,
           process_text(peer.endpoint), deadline.seconds(), last);
    if (look) look();
    net::sleep_until(Deadline::at_ns(std::min(deadline.ns(), now_ns() + 20'000'000)));
  }
}

void Dialer::data(const Peer &peer, const Bytes16 &key, const DataPlan &plan, Deadline deadline, const Look &look,
                  std::vector<DialedStream> &out) const {
  std::vector<net::Address> addresses = addresses_of(peer.endpoint);
  // Those that Endpoint::ways_to() counts come first: of IPv4 where both sides have it.
  const auto of_ipv4 = [](const net::Address &a) { return a.family() == AF_INET; };
  const std::vector<net::Address> own = addresses_of(self_);
  const bool ipv4 = std::any_of(own.begin(), own.end(), of_ipv4) && std::any_of(addresses.begin(), addresses.end(), of_ipv4);
  const auto others =
      std::stable_partition(addresses.begin(), addresses.end(), [&](const net::Address &a) { return of_ipv4(a) == ipv4; });
  const size_t ways = others == addresses.begin() ? addresses.size() : static_cast<size_t>(others - addresses.begin());
  const auto count = static_cast<size_t>(plan.streams);
  out.resize(count);
  const auto one = [&](size_t i, const Look &its) {
    // Each stream has an address of its own, as far as there are some, and takes another one where that leads nowhere.
    auto turned = addresses;
    if (ways != 0 && plan.all_ways) {
      const auto begin = turned.begin();
      std::rotate(begin, begin + static_cast<std::ptrdiff_t>(i % ways), begin + static_cast<std::ptrdiff_t>(ways));
    }
    const StreamNumber number{static_cast<uint32_t>(i), static_cast<uint32_t>(count), 0};
    out[i] = stream_to(peer, key, turned, number, deadline, its);
  };
  std::vector<size_t> all(count);
  std::iota(all.begin(), all.end(), size_t{0});
  SideBySide side_by_side(std::move(all), plan.at_once ? count : 1, one, look);
  side_by_side.take_part();
  side_by_side.await();
  if (const auto failed = side_by_side.take_failed(); !failed.empty()) std::rethrow_exception(failed[0].why);
}

}  // namespace isthmus::bootstrap
