#include "bootstrap/newcomers.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/assert.hpp"
#include "bootstrap/host.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/connect_race.hpp"
#include "net/handshake.hpp"
#include "net/siphash.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr size_t kMostName = 1024, kMostMembers = 4096;
constexpr int64_t kMemberLookNs = 20'000'000;  // between two looks of a member that waits for newcomers
constexpr int64_t kAbsentNs = 2'000'000'000;   // nobody listens at the ticket's addresses for so long: its process has ended
constexpr int32_t kMostWorld = 16'777'216;
constexpr int64_t kMostWaitNs = 1'000'000'000'000'000'000;  // what a welcome may say
constexpr int64_t kPauseNs = 50'000'000;                    // between two attempts to connect
constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr std::string_view kPrefix = "isthmus-";

Deadline slice(Deadline deadline, int64_t ns) { return Deadline::at_ns(std::min(deadline.ns(), now_ns() + ns)); }

void append_message(net::ByteVector &out, Meet type, std::span<const std::byte> body) {
  net::append_frame(out, static_cast<uint16_t>(type), body);
}

}  // namespace

// ---- the words -----------------------------------------------------------------------------------------------------------------------

// Six bits a digit, the lowest first: three bytes are four digits, and a ticket's number of bytes is a multiple of three.
std::string entry_text(const Ticket &ticket) {
  std::array<std::byte, kTicketBytes> bytes{};
  pack_ticket(ticket, bytes);
  static_assert(kTicketBytes % 3 == 0);
  std::string text(kPrefix);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t b = 0; b < 3; ++b) three |= std::to_integer<uint32_t>(bytes[i + b]) << (8 * b);
    for (int d = 0; d < 4; ++d) text += kDigits[three >> (6 * d) & 63];
  }
  return text;
}

Ticket parse_entry(const std::string &text) {
  std::array<std::byte, kTicketBytes> bytes{};
  bool sound = text.size() == kPrefix.size() + kTicketBytes / 3 * 4 && text.starts_with(kPrefix);
  for (size_t i = 0; sound && i < bytes.size(); i += 3) {
    uint32_t three = 0;
    for (size_t d = 0; d < 4 && sound; ++d) {
      const char *const at = std::strchr(kDigits, text[kPrefix.size() + i / 3 * 4 + d]);
      sound = at && *at;
      if (sound) three |= static_cast<uint32_t>(at - kDigits) << (6 * d);
    }
    for (size_t b = 0; b < 3; ++b) bytes[i + b] = static_cast<std::byte>(three >> (8 * b) & 255);
  }
  if (!sound)
    fail(Code::Argument, "'{}' is not a ticket: pass on the text of isthmus_comm_ticket unchanged", text.substr(0, 200));
  return unpack_ticket(bytes);
}

Bytes16 entry_job_key(const Settings &settings) {
  return settings.text(Setting::JobKey).empty() ? Bytes16{} : derive_key(settings, {});
}

Bytes16 entry_key(const Bytes16 &ticket, const Bytes16 &job) {
  net::ByteVector message;
  net::Writer(message).bytes(net::as_bytes("join")).bytes16(job);
  return net::siphash128(ticket, message);
}

void append_enter(net::ByteVector &out, const Enter &m) {
  net::ByteVector body;
  net::Writer(body).number(m.pid).number(m.slot).text(m.hostname.substr(0, 255));
  append_message(out, Meet::Enter, body);
}

std::optional<Enter> parse_enter(std::span<const std::byte> body) {
  net::Reader r(body);
  Enter m;
  m.pid = r.number<int64_t>();
  m.slot = r.number<int32_t>();
  m.hostname = r.text(255);
  if (!r.done() || m.slot < kAnySlot) return {};
  return m;
}

void append_welcome(net::ByteVector &out, const Welcome &m) {
  net::ByteVector body;
  net::Writer(body).number(m.rank).number(m.world).number(m.slot).number(m.slots).number(m.making_ns).number(m.whole_ns);
  net::Writer(body).text(m.name.substr(0, kMostName)).text(m.members.substr(0, kMostMembers));
  append_message(out, Meet::Welcome, body);
}

std::optional<Welcome> parse_welcome(std::span<const std::byte> body) {
  net::Reader r(body);
  Welcome m;
  m.rank = r.number<int32_t>();
  m.world = r.number<int32_t>();
  m.slot = r.number<int32_t>();
  m.slots = r.number<int32_t>();
  m.making_ns = r.number<int64_t>();
  m.whole_ns = r.number<int64_t>();
  m.name = r.text(kMostName);
  m.members = r.text(kMostMembers);
  // Slots ascend with ranks, so behind this rank's slot there is one for each rank behind this one.
  const bool numbered = m.rank >= 0 && m.rank < m.world && m.world <= m.slots && m.slots <= kMostWorld && m.slot >= m.rank &&
                        m.slots - m.slot >= m.world - m.rank;
  if (!r.done() || !numbered || m.making_ns < 0 || m.whole_ns < m.making_ns || m.whole_ns > kMostWaitNs) return {};
  return m;
}

// ---- the members' side ---------------------------------------------------------------------------------------------------------------

Newcomers::~Newcomers() {
  if (!told_) failed({Code::Aborted, "join: the members have given up"});
  // The thread of tickets may still wait for them in poll(), for minutes, and close() does not end what another thread polls.
  for (const Newcomer &one : all_) ::shutdown(one.fd.get(), SHUT_WR);
}

void Newcomers::welcome(const Welcome &same, const std::vector<int> &ranks) {
  ISTHMUS_ASSERT(ranks.size() == all_.size(), "each newcomer has a rank");
  for (size_t i = 0; i < all_.size(); ++i) {
    const Newcomer &one = all_[i];
    net::ByteVector words;
    Welcome mine = same;
    mine.rank = ranks[i];
    mine.slot = one.slot;
    append_welcome(words, mine);
    net::send_some(one.fd.get(), words);  // where it fails, the next read says why
  }
}

// The next message of that type, which it sends with a blob or without one. Throws where it is gone or has failed.
std::optional<Blob> Newcomers::answer(Newcomer &one, Meet wanted, Deadline deadline, const Look &look) {
  for (;;) {
    uint16_t type = 0;
    std::span<const std::byte> body;
    const auto next = one.reader.next(type, body);
    if (next == net::FrameReader::Result::Frame) {
      if (static_cast<Meet>(type) == Meet::Failure)
        if (const auto why = parse_failure(body)) throw Error(why->code, formatted("{}: {}", one.text(), why->text));
      if (static_cast<Meet>(type) != wanted)
        fail(Code::Mismatch, "{} sent a message of type {} in place of {}", one.text(), type, static_cast<int>(wanted));
      if (static_cast<Meet>(type) != Meet::Contribution) return {};
      const auto m = parse_contribution(body);
      if (!m || m->round != round_) fail(Code::Mismatch, "{} sent a malformed contribution", one.text());
      return Blob(m->blob.begin(), m->blob.end());
    }
    if (next == net::FrameReader::Result::Bad) fail(Code::Mismatch, "{} sent {}", one.text(), one.reader.why());
    const ssize_t n = net::recv_some(one.fd.get(), one.reader.space());
    if (n > 0) {
      one.reader.received(static_cast<size_t>(n));
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
      fail(Code::PeerLost, "{}, to be rank {}, has closed its connection; it has probably ended", one.text(), one.slot);
    if (net::wait_events(one.fd.get(), POLLIN, slice(deadline, kMemberLookNs)) != 0) continue;
    net::check_interrupt();
    if (look) look();
    if (deadline.passed())
      fail(Code::Timeout, "{}, to be rank {}, does not answer; it is stopped or very late", one.text(), one.slot);
  }
}

std::vector<Blob> Newcomers::contributions(Deadline deadline, const Look &look) {
  std::vector<Blob> out;
  for (Newcomer &one : all_) out.push_back(*answer(one, Meet::Contribution, deadline, look));
  return out;
}

void Newcomers::results(const std::vector<Blob> &all, Deadline deadline, const Look &look) {
  net::ByteVector words;
  for (size_t r = 0; r < all.size(); ++r) append_result(words, round_, static_cast<uint32_t>(r), all[r]);
  ++round_;
  for (const Newcomer &one : all_)
    for (std::span<const std::byte> rest = words; !rest.empty();) {
      const ssize_t n = net::send_some(one.fd.get(), rest);
      if (n < 0)
        fail(Code::PeerLost, "{}, to be rank {}, has closed its connection; it has probably ended", one.text(), one.slot);
      rest = rest.subspan(static_cast<size_t>(n));
      if (n > 0 || net::wait_events(one.fd.get(), POLLOUT, slice(deadline, kMemberLookNs)) != 0) continue;
      net::check_interrupt();
      if (look) look();
      if (deadline.passed())
        fail(Code::Timeout, "{}, to be rank {}, takes nothing more; it is stopped or very late", one.text(), one.slot);
    }
}

void Newcomers::await_made(Deadline deadline, const Look &look) {
  for (Newcomer &one : all_) answer(one, Meet::Made, deadline, look);
}

void Newcomers::kept() noexcept {
  told_ = true;
  try {
    net::ByteVector words;
    append_message(words, Meet::Kept, {});
    for (const Newcomer &one : all_) net::send_some(one.fd.get(), words);
  } catch (const std::exception &) {  // no memory: the other members tell them too
  }
}

void Newcomers::failed(const Status &why) noexcept {
  if (std::exchange(told_, true)) return;
  try {
    net::ByteVector words;
    append_failure(words, why);
    for (const Newcomer &one : all_) net::send_some(one.fd.get(), words);
  } catch (const std::exception &) {  // the end of the connections says enough
  }
}

// ---- the newcomer's side -------------------------------------------------------------------------------------------------------------

Entry::Entry(const Ticket &ticket, const Settings &settings, int slot, Deadline deadline)
    : making_(deadline), whole_(deadline) {
  connect(ticket, entry_key(ticket.key, entry_job_key(settings)), deadline);
  net::ByteVector words;
  append_enter(words, {::getpid(), slot, host_name()});
  if (net::send_all(fd_.get(), words, deadline) != net::Io::Ok)
    fail(Code::PeerLost, "join: the process at {} closed the connection", where_);
  std::span<const std::byte> body;
  if (!next(Meet::Welcome, body, deadline))
    fail(Code::Timeout, "join: no member has let this process in within {:g} s; do all of them call grow with this ticket?",
         deadline.seconds());
  const auto welcome = parse_welcome(body);
  if (!welcome) fail(Code::Mismatch, "join: the process at {} sent a malformed welcome", where_);
  welcome_ = *welcome;
  making_ = Deadline::at_ns(now_ns() + welcome_.making_ns);
  whole_ = Deadline::at_ns(now_ns() + welcome_.whole_ns);
}

void Entry::connect(const Ticket &ticket, const Bytes16 &key, Deadline deadline) {
  std::string last = "no attempt was made";
  for (const net::Address &a : ticket.addresses) where_ += (where_.empty() ? "" : ", ") + a.text();
  int64_t refused_since = 0;
  for (;;) {
    bool refused = true;
    if (attempt(ticket, key, deadline, last, refused)) return;
    refused_since = !refused ? 0 : refused_since != 0 ? refused_since : now_ns();
    if (refused_since != 0 && now_ns() - refused_since > kAbsentNs)
      fail(Code::PeerLost, "join: nobody listens at {} ({}): the process that made the ticket has ended", where_, last);
    if (deadline.passed())
      fail(Code::Timeout, "join: could not reach the process that made the ticket within {:g} s at {} ({})",
           deadline.seconds(), where_, last);
    net::sleep_until(slice(deadline, kPauseNs));
  }
}

bool Entry::attempt(const Ticket &ticket, const Bytes16 &key, Deadline deadline, std::string &last, bool &refused) {
  const auto soon = [&] { return slice(deadline, seconds_to_ns(kConnectSeconds)); };
  net::Hello hello;
  hello.role = net::Role::Rendezvous;
  hello.process = rendezvous_process();
  hello.ticket = ticket.number;
  net::ConnectRace race(ticket.addresses);
  size_t strangers = 0, which = 0;
  UniqueFd fd;
  while (race.next(soon(), fd, which)) {
    refused = false;
    try {
      net::dial(fd.get(), hello, key, formatted("the process at {}", race.address(which).text()), soon());
      where_ = race.address(which).text();
      fd_ = std::move(fd);
      return true;
    } catch (const Error &e) {
      if (e.code() != Code::Auth && e.code() != Code::PeerLost && e.code() != Code::Timeout) throw;
      last = e.text();
      strangers += e.code() == Code::Auth;
    }
  }
  if (strangers == ticket.addresses.size())
    fail(Code::Auth,
         "join: the process at {} does not take this ticket: this process has another ISTHMUS_JOB_KEY than the job, or the "
         "process that made the ticket has ended and another listens there ({})",
         where_, last);
  refused &= race.nobody_listens();
  if (const std::string why = race.why(); !why.empty()) last = why;
  return false;
}

bool Entry::next(Meet wanted, std::span<const std::byte> &body, Deadline deadline) {
  for (;;) {
    uint16_t type = 0;
    const auto got = reader_.next(type, body);
    if (got == net::FrameReader::Result::Frame) {
      if (static_cast<Meet>(type) == Meet::Failure)
        if (const auto why = parse_failure(body)) {
          refused_ = true;
          throw Error(why->code, why->text);
        }
      if (static_cast<Meet>(type) != wanted)
        fail(Code::Mismatch, "join: the process at {} sent a message of type {}", where_, type);
      return true;
    }
    if (got == net::FrameReader::Result::Bad) fail(Code::Mismatch, "join: the process at {} sent {}", where_, reader_.why());
    const ssize_t n = net::recv_some(fd_.get(), reader_.space());
    if (n > 0) {
      reader_.received(static_cast<size_t>(n));
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
      fail(Code::PeerLost, "join: the process that made the ticket ({}) has closed the connection; it has probably ended",
           where_);
    if (net::wait_events(fd_.get(), POLLIN, deadline) == 0) return false;
  }
}

std::vector<Blob> Entry::all_gather(const Blob &mine, Deadline deadline) {
  check_blob(mine);
  net::ByteVector words;
  append_contribution(words, round_, mine);
  if (net::send_all(fd_.get(), words, deadline) == net::Io::Timeout)
    fail(Code::Timeout, "join: the process at {} takes nothing more", where_);
  std::vector<Blob> blobs(static_cast<size_t>(welcome_.world));
  for (size_t r = 0; r < blobs.size(); ++r) {
    std::span<const std::byte> body;
    if (!next(Meet::Result, body, deadline))
      fail(Code::Timeout, "join: the members do not answer; one of them is stopped or very late");
    const auto m = parse_result(body);
    if (!m || m->round != round_ || m->rank != r)
      fail(Code::Mismatch, "join: the process at {} sent a malformed result", where_);
    blobs[r].assign(m->blob.begin(), m->blob.end());
  }
  ++round_;
  return blobs;
}

// Between two rounds the other end says nothing but that it has failed.
void Entry::look() {
  std::span<const std::byte> body;
  next(Meet::Failure, body, Deadline::at_ns(0));
}

void Entry::say_made() noexcept {
  const auto word = net::frame_header(static_cast<uint16_t>(Meet::Made), 0);
  net::send_some(fd_.get(), word);  // where it fails, kept() finds the end
}

void Entry::say_failed(const Status &why) noexcept {
  try {
    net::ByteVector words;
    append_failure(words, why);
    net::send_some(fd_.get(), words);
  } catch (const std::exception &) {  // no memory: the end of the connection says enough
  }
}

bool Entry::kept(Deadline until) {
  std::span<const std::byte> body;
  return next(Meet::Kept, body, until);
}

}  // namespace isthmus::bootstrap
