#include "bootstrap/waiting_room.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>

#include "base/log.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "net/socket.hpp"
#include "net/wait.hpp"

namespace isthmus::bootstrap {
namespace {

constexpr int64_t kEnterNs = 5'000'000'000;  // the time that a process has to say Enter

// It has been read to the end of what it said, so closing loses nothing of these words.
void let_go(Newcomer &one, const Status &why) noexcept {
  try {
    net::ByteVector words;
    append_failure(words, why);
    net::send_some(one.fd.get(), words);
  } catch (const std::exception &) {  // no memory: the end of the connection says enough
  }
  one.fd.reset();
}

std::string list_of(const std::vector<int> &numbers) {
  std::string text;
  for (const int n : numbers) text += formatted("{}{}", text.empty() ? "" : ",", n);
  return text;
}

}  // namespace

void WaitingRooms::open(uint64_t number, const Bytes16 &job_key, int64_t until_ns) {
  const Lock lock(mutex_);
  look_at_clock();
  size_t open = 0;
  for (const auto &[n, room] : rooms_) open += room.over.ok();
  if (open >= kMostOpen)
    fail(Code::Resource, "ticket: {} tickets of this process are neither used nor expired, and it makes no more", open);
  WaitingRoom room;
  room.job_key = job_key;
  room.until_ns = until_ns;
  rooms_.emplace(number, std::move(room));
  for (auto at = rooms_.begin(); rooms_.size() - open > kMostOver && at != rooms_.end();)
    at = at->second.over.ok() ? std::next(at) : rooms_.erase(at);
}

std::optional<Bytes16> WaitingRooms::job_key(uint64_t number) {
  const Lock lock(mutex_);
  const auto at = rooms_.find(number);
  if (at == rooms_.end()) return {};
  return at->second.job_key;
}

size_t WaitingRooms::waiting(uint64_t number) {
  const Lock lock(mutex_);
  look_at_clock();
  const auto at = rooms_.find(number);
  if (at == rooms_.end()) return 0;
  return static_cast<size_t>(
      std::count_if(at->second.coming.begin(), at->second.coming.end(), [](const auto &c) { return c.second.entered; }));
}

// ---- a member's thread ---------------------------------------------------------------------------------------------------------------

// True: each slot has its process. Who asks for another slot is refused.
bool WaitingRooms::seat(WaitingRoom &room, const std::vector<int> &slots) {
  std::vector<int> free = slots;
  size_t seated = 0;
  for (auto at = room.coming.begin(); at != room.coming.end();) {
    Newcomer &one = at->second.one;
    one.slot = kAnySlot;
    if (!at->second.entered || one.who.slot == kAnySlot) {
      ++at;
      continue;
    }
    const auto wanted = std::find(free.begin(), free.end(), one.who.slot);
    if (wanted == free.end()) {
      let_go(one, {Code::Argument,
                   formatted("join: slot {} is not free, a rank lives there; free are {}", one.who.slot, list_of(slots))});
      at = room.coming.erase(at);
      continue;
    }
    one.slot = one.who.slot;
    free.erase(wanted);
    ++seated;
    ++at;
  }
  for (auto &[number, c] : room.coming) {
    if (free.empty() || !c.entered || c.one.slot != kAnySlot) continue;
    c.one.slot = free.front();
    free.erase(free.begin());
    ++seated;
  }
  return seated == slots.size();
}

std::vector<Newcomer> WaitingRooms::take(uint64_t number, const std::vector<int> &slots, Deadline deadline,
                                         const Look &look) {
  std::vector<Newcomer> out;
  Lock lock(mutex_);
  for (;;) {
    look_at_clock();
    const auto at = rooms_.find(number);
    if (at == rooms_.end()) fail(Code::Argument, "the ticket is forgotten: more than {} were made after it", kMostOver);
    WaitingRoom &room = at->second;
    if (!room.over.ok()) throw Error(room.over.code, room.over.text);
    if (seat(room, slots)) {
      for (auto c = room.coming.begin(); c != room.coming.end();) {
        if (c->second.one.slot == kAnySlot) {
          ++c;
          continue;
        }
        out.push_back(std::move(c->second.one));
        c = room.coming.erase(c);
      }
      end(room, {Code::Argument, "the ticket was used: a ticket is for one grow"});
      break;
    }
    if (deadline.passed()) {
      const size_t came = static_cast<size_t>(
          std::count_if(room.coming.begin(), room.coming.end(), [](const auto &c) { return c.second.entered; }));
      fail(Code::Timeout, "of {} processes with the ticket {} came within {:g} s", slots.size(), came, deadline.seconds());
    }
    const int64_t left = std::clamp<int64_t>(deadline.left_ns(), 0, kLookNs);
    changed_.wait_for(lock, std::chrono::nanoseconds(left));
    const Unlocked outside(mutex_);
    net::check_interrupt();
    if (look) look();
  }
  std::sort(out.begin(), out.end(), [](const Newcomer &a, const Newcomer &b) { return a.slot < b.slot; });
  return out;
}

// ---- the thread of the tickets -------------------------------------------------------------------------------------------------------

Status WaitingRooms::admit(uint64_t number, net::Guest &guest) {
  const Lock lock(mutex_);
  look_at_clock();
  const auto at = rooms_.find(number);
  if (at == rooms_.end() || !at->second.over.ok())
    return at == rooms_.end() ? Status{Code::Argument, "the ticket is forgotten"} : at->second.over;
  if (guest.hello.count != 0) return {Code::Argument, "this ticket is for isthmus_join, and this process came to a meeting"};
  if (at->second.coming.size() >= kMostComing)
    return {Code::Resource, formatted("{} processes have come with this ticket, and no more are let in", kMostComing)};
  Coming c;
  c.one.fd = std::move(guest.fd);
  c.one.from = guest.from;
  c.until_ns = now_ns() + kEnterNs;
  at->second.coming.emplace(came_++, std::move(c));
  return {};
}

void WaitingRooms::watch(std::vector<pollfd> &fds) {
  watched_.clear();
  const Lock lock(mutex_);
  for (const auto &[number, room] : rooms_)
    for (const auto &[process, c] : room.coming) {
      fds.push_back({c.one.fd.get(), POLLIN, 0});
      watched_.emplace_back(number, process);
    }
}

int64_t WaitingRooms::wakes_ns() {
  const Lock lock(mutex_);
  int64_t at = std::numeric_limits<int64_t>::max();
  for (const auto &[number, room] : rooms_) {
    if (!room.coming.empty() && room.over.ok()) at = std::min(at, room.until_ns);
    for (const auto &[process, c] : room.coming)
      if (!c.entered) at = std::min(at, c.until_ns);
  }
  return at;
}

size_t WaitingRooms::hear(std::span<const pollfd> fds) {
  const size_t count = watched_.size();
  {
    const Lock lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      const auto room = rooms_.find(watched_[i].first);
      if (room == rooms_.end()) continue;
      const auto c = room->second.coming.find(watched_[i].second);
      if (c == room->second.coming.end()) continue;  // a member has taken it meanwhile
      // What has come is read first: this thread may be the one that is late.
      const auto late = [&] { return !c->second.entered && now_ns() >= c->second.until_ns; };
      if (((fds[i].revents || late()) && !stays(room->second, c->second)) || late()) room->second.coming.erase(c);
    }
    look_at_clock();
  }
  changed_.notify_all();
  return count;
}

// False: it has left, or it is refused.
bool WaitingRooms::stays(WaitingRoom &room, Coming &c) {
  for (;;) {
    uint16_t type = 0;
    std::span<const std::byte> body;
    const auto next = c.one.reader.next(type, body);
    if (next == net::FrameReader::Result::Frame && !c.entered) {
      const auto enter = static_cast<Meet>(type) == Meet::Enter ? parse_enter(body) : std::nullopt;
      if (!enter) return false;
      if (!room.over.ok()) {
        let_go(c.one, room.over);
        return false;
      }
      const auto rival = std::find_if(room.coming.begin(), room.coming.end(), [&](const auto &other) {
        return other.second.entered && enter->slot != kAnySlot && other.second.one.who.slot == enter->slot;
      });
      if (rival != room.coming.end()) {
        let_go(c.one, {Code::Argument, formatted("join: another process (pid {} on {}) has come for slot {} before",
                                                 rival->second.one.who.pid, rival->second.one.who.hostname, enter->slot)});
        return false;
      }
      c.one.who = *enter;
      c.entered = true;
      continue;
    }
    if (next != net::FrameReader::Result::More) return false;  // it says nothing until it is let in
    const ssize_t n = net::recv_some(c.one.fd.get(), c.one.reader.space());
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (n <= 0) return false;
    c.one.reader.received(static_cast<size_t>(n));
  }
}

// ---- under the lock ------------------------------------------------------------------------------------------------------------------

void WaitingRooms::look_at_clock() {
  const int64_t now = now_ns();
  for (auto &[number, room] : rooms_)
    if (room.over.ok() && now >= room.until_ns) end(room, {Code::Argument, "the ticket has expired: make another one"});
}

// Those that have said Enter are told. The others are told when they have said it.
void WaitingRooms::end(WaitingRoom &room, Status why) {
  room.over = std::move(why);
  for (auto at = room.coming.begin(); at != room.coming.end();) {
    if (!at->second.entered) {
      ++at;
      continue;
    }
    let_go(at->second.one, room.over);
    at = room.coming.erase(at);
  }
}

}  // namespace isthmus::bootstrap
