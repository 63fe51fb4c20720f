#include "bootstrap/ticket_server.hpp"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <future>
#include <system_error>

#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "bootstrap/tcp_rendezvous.hpp"
#include "net/siphash.hpp"
#include "net/socket.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr size_t kMostLate = 256;                      // late clients at one time; of more the oldest are let go
constexpr int64_t kLateNs = 5'000'000'000;             // the time that a late client has to read the words
constexpr size_t kMostHeard = 2 * kMaxRendezvousBody;  // bytes that a late client may send meanwhile
constexpr size_t kMostElsewhere = 1024;                // tickets; of more the oldest are forgotten
constexpr std::chrono::seconds kBeginsWithin{5};       // the thread; else no listener is watched
constexpr int kAfterTroubleMs = 100;                   // so that trouble that stays fills no log

// Leaves the listeners for which a ticket has room, and returns their addresses.
std::vector<net::Address> listed(std::vector<UniqueFd> &listeners) {
  Ticket all;
  for (const UniqueFd &fd : listeners) all.addresses.push_back(net::local_address(fd.get()));
  std::array<std::byte, kTicketBytes> bytes;
  pack_ticket(all, bytes);
  std::vector<net::Address> out = unpack_ticket(bytes).addresses;
  std::erase_if(listeners, [&](const UniqueFd &fd) {
    const std::string at = net::local_address(fd.get()).text();
    return std::none_of(out.begin(), out.end(), [&](const net::Address &a) { return a.text() == at; });
  });
  return out;
}

std::string list_text(const std::vector<net::Address> &addresses) {
  std::string text;
  for (const net::Address &a : addresses) text += (text.empty() ? "" : ", ") + a.text();
  return text;
}

}  // namespace

TicketServer::TicketServer(std::vector<UniqueFd> listeners)
    : addresses_(listed(listeners)),
      where_(list_text(addresses_)),
      gate_(rendezvous_process(), net::Gate::UnknownKey::Refuse) {
  for (UniqueFd &fd : listeners) gate_.add_listener(std::move(fd));
  gate_.find_keys([this](const net::Hello &hello) -> std::optional<Bytes16> {
    const auto book = book_.lock();
    const auto number = book->find(hello.ticket);
    if (!number) return {};
    const auto job_key = rooms_.job_key(*number);
    return job_key ? entry_key(book->key(*number), *job_key) : book->key(*number);
  });
  begin();
}

void TicketServer::begin() {
  const auto number = std::make_shared<std::promise<pid_t>>();
  try {
    thread_ = begin_own_thread([this, number] {
      number->set_value(static_cast<pid_t>(::syscall(SYS_gettid)));
      run();
    });
  } catch (const std::system_error &e) { fail(Code::Resource, "ticket: no thread to serve it: {}", e.what()); }
  auto begun = number->get_future();
  if (begun.wait_for(kBeginsWithin) == std::future_status::ready) listeners_.begin(thread_.native_handle(), begun.get());
}

std::optional<uint64_t> TicketServer::number_of(const Ticket &ticket) {
  const auto book = book_.lock();
  const auto number = book->find(ticket.number);
  if (!number || book->key(*number) != ticket.key) return {};
  return number;
}

std::optional<Status> TicketServer::watch(const Ticket &ticket, int listener) {
  const auto number = number_of(ticket);
  if (!number) return {};
  return listeners_.watch(listener, *number);
}

Ticket TicketServer::make_entry(const Bytes16 &job_key, int64_t until_ns) {
  const Ticket ticket = make();
  rooms_.open(*number_of(ticket), job_key, until_ns);
  return ticket;
}

Ticket TicketServer::make() {
  Ticket ticket;
  ticket.addresses = addresses_;
  uint64_t dropped_before = 0, dropped = 0;
  {
    const auto book = book_.lock();
    dropped_before = book->dropped();
    const uint64_t number = book->make();
    dropped = book->dropped();
    ticket.number = static_cast<uint32_t>(number);
    ticket.key = book->key(number);
  }
  if (dropped > dropped_before && dropped_before % TicketBook::kRemembered == 0)
    ISTHMUS_WARN(
        "this process made more than {} unique ids and tickets, so it forgets the oldest, though nobody has used them: what "
        "is made with one of those does not span vendors",
        TicketBook::kRemembered);
  return ticket;
}

void TicketServer::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "isthmus-tickets");
  for (;;) {
    try {
      turn();
    } catch (const std::exception &e) {
      ISTHMUS_WARN("the meetings at {}: {}", where_, e.what());
      ::poll(nullptr, 0, kAfterTroubleMs);
    }
  }
}

void TicketServer::turn() {
  wait();
  hear();
  std::vector<net::Guest> guests;
  gate_.service(guests);
  for (net::Guest &g : guests) admit(std::move(g));
  serve();
}

// Until somebody has something to say, or it is time for something.
void TicketServer::wait() {
  fds_.assign({{gate_.fd(), POLLIN, 0}, {listeners_.fd(), POLLIN, 0}});
  rooms_.watch(fds_);
  int64_t until_ns = std::min(gate_.next_deadline_ns(), rooms_.wakes_ns());
  for (const auto &[number, gathering] : going_) {
    gathering.watch(fds_);
    until_ns = std::min(until_ns, gathering.wakes_ns());
  }
  for (const LateClient &c : late_) {
    fds_.push_back({c.fd.get(), static_cast<short>(POLLIN | (c.sent < c.words.size() ? POLLOUT : 0)), 0});
    until_ns = std::min(until_ns, c.until_ns);
  }
  if (::poll(fds_.data(), fds_.size(), Deadline::at_ns(until_ns).left_ms()) >= 0) return;
  const int error = errno;
  for (pollfd &p : fds_) p.revents = 0;
  if (error != EINTR) fail_system("poll", error);
}

void TicketServer::hear() {
  if (fds_[1].revents) listeners_.hear([this](const WatchedListener &l) { note_elsewhere(l); });
  std::span<const pollfd> rest = std::span<const pollfd>(fds_).subspan(2);
  rest = rest.subspan(rooms_.hear(rest));
  for (auto &[number, gathering] : going_) rest = rest.subspan(gathering.hear(rest));
  std::erase_if(late_, [&](LateClient &c) { return !stays(c); });
}

// A client has proved that it holds a ticket of this server.
void TicketServer::admit(net::Guest &&guest) {
  if (guest.hello.role != net::Role::Rendezvous) {
    ISTHMUS_WARN("refused a client: {}: it asks for no meeting", guest.from);
    return;
  }
  std::optional<uint64_t> number;
  std::optional<Status> over;
  {
    const auto book = book_.lock();
    number = book->find(guest.hello.ticket);
    if (number) over = book->over(*number);
  }
  if (!number) return;
  if (rooms_.job_key(*number)) {
    if (const Status refused = rooms_.admit(*number, guest); !refused.ok()) tell_late(std::move(guest.fd), refused);
    return;
  }
  const auto at = going_.find(*number);
  if (over && at == going_.end()) return tell_late(std::move(guest.fd), meeting_over(*over));
  if (over && !at->second.failure().ok()) return tell_late(std::move(guest.fd), meeting_over(*over));
  const auto [gathering, begins] = going_.try_emplace(*number, where_, 0, gate_);
  if (const auto known = elsewhere_.find(*number); begins && known != elsewhere_.end())
    gathering->second.note(known->second);
  gathering->second.admit(std::move(guest));
}

// Ranks that met go to the library's listener too, when they know that the communicator is the library's. Then nobody is missing.
void TicketServer::note_elsewhere(const WatchedListener &listener) {
  if (book_.lock()->over(listener.owner)) return;
  Elsewhere &elsewhere = elsewhere_[listener.owner];
  elsewhere.note(listener.at, now_ns());
  if (const auto going = going_.find(listener.owner); going != going_.end()) going->second.note(elsewhere);
  if (elsewhere_.size() > kMostElsewhere) elsewhere_.erase(elsewhere_.begin());
}

void TicketServer::serve() {
  for (auto at = going_.begin(); at != going_.end();) {
    const uint64_t number = at->first;
    Gathering &gathering = at->second;
    const bool over = serve(number, gathering);
    if (!gathering.failure().ok() || over) note_over(number, gathering.failure());
    if (!over) {
      ++at;
      continue;
    }
    std::vector<UniqueFd> untold = gathering.untold();
    at = going_.erase(at);
    const auto how = untold.empty() ? std::nullopt : book_.lock()->over(number);
    for (UniqueFd &fd : untold)
      if (how) tell_late(std::move(fd), meeting_over(*how));
  }
}

// True: it is over. What goes wrong here, want of memory above all, ends this meeting and no other.
bool TicketServer::serve(uint64_t number, Gathering &gathering) {
  try {
    return gathering.serve();
  } catch (const std::exception &e) {
    ISTHMUS_WARN("the meeting at {} ended: {}", where_, e.what());
    note_over(number, {Code::Resource, e.what()});
    return true;
  }
}

void TicketServer::note_over(uint64_t number, const Status &failure) {
  book_.lock()->note_over(number, failure);
  elsewhere_.erase(number);
}

Status TicketServer::meeting_over(const Status &how) const {
  return {how.code, formatted("the meeting at {} is over: {}", where_, how.text)};
}

void TicketServer::tell_late(UniqueFd fd, const Status &words) {
  LateClient c;
  c.fd = std::move(fd);
  c.until_ns = now_ns() + kLateNs;
  append_failure(c.words, words);
  if (!stays(c)) return;
  if (late_.size() >= kMostLate) late_.pop_front();
  late_.push_back(std::move(c));
}

// Sends what the kernel takes, and reads on until the client closes: closing before would reset the connection, and the words might be
// lost. False: nothing is left to do.
bool TicketServer::stays(LateClient &c) {
  if (now_ns() >= c.until_ns) return false;
  if (c.sent < c.words.size()) {
    const ssize_t n = net::send_some(c.fd.get(), std::span<const std::byte>(c.words).subspan(c.sent));
    if (n < 0) return false;
    c.sent += static_cast<size_t>(n);
    if (c.sent == c.words.size()) ::shutdown(c.fd.get(), SHUT_WR);
  }
  std::array<std::byte, 16384> unread;
  while (c.heard < kMostHeard) {
    const ssize_t n = net::recv_some(c.fd.get(), unread);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    c.heard += static_cast<size_t>(n);
  }
  return false;
}

}  // namespace isthmus::bootstrap
