#include "engine/out_of_band.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "engine/member.hpp"

namespace isthmus::engine {
namespace {

constexpr int64_t kLookNs =
    20'000'000;  // between two looks whether the other rank is still there, and whether the program wants to stop

// Of what it is, the ranks and the size: FNV-1a.
uint64_t subject_of(std::string_view what, std::span<const int> ranks, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325ull;
  const auto add = [&](uint64_t value) {
    for (int i = 0; i < 8; ++i) h = (h ^ (value >> (8 * i) & 0xff)) * 0x100000001b3ull;
  };
  for (const char c : what) add(static_cast<unsigned char>(c));
  add(bytes);
  for (const int r : ranks) add(static_cast<uint64_t>(r));
  return h;
}

}  // namespace

void OutOfBand::came(uint32_t from, uint64_t about, uint64_t number, std::span<const std::byte> bytes) {
  if (from >= world_ || bytes.size() > kMostBytes) return;
  {
    const Lock lock(mutex_);
    auto &kept = from_[from].kept;
    make_room(kept);
    kept.push_back({about, number, {bytes.begin(), bytes.end()}, false});
  }
  changed_.notify_all();
}

void OutOfBand::make_room(std::deque<Message> &kept) {
  if (kept.size() < kMostKept) return;
  const auto given_up = std::find_if(kept.begin(), kept.end(), [](const Message &m) { return m.withdrawn; });
  kept.erase(given_up != kept.end() ? given_up : kept.begin());
}

void OutOfBand::give_back(int from, Message message) {
  const Lock lock(mutex_);
  auto &[kept, given_up] = from_[static_cast<size_t>(from)];
  message.withdrawn = std::find(given_up.begin(), given_up.end(), message.number) != given_up.end();
  make_room(kept);
  kept.push_front(std::move(message));
}

void OutOfBand::withdrawn(uint32_t from, uint64_t number) {
  if (from >= world_) return;
  const Lock lock(mutex_);
  auto &[kept, given_up] = from_[from];
  const auto at = std::find_if(kept.begin(), kept.end(), [&](const Message &m) { return m.number == number; });
  if (at != kept.end()) return void(at->withdrawn = true);
  if (given_up.size() >= kMostKept) given_up.pop_front();
  given_up.push_back(number);
}

std::optional<OutOfBand::Message> OutOfBand::take(int from, uint64_t about, int64_t until_ns) {
  Lock lock(mutex_);
  auto &kept = from_[static_cast<size_t>(from)].kept;
  for (;;) {
    const auto at =
        std::find_if(kept.begin(), kept.end(), [&](const Message &m) { return m.about == about && !m.withdrawn; });
    if (at != kept.end()) {
      Message message = std::move(*at);
      kept.erase(at);
      return message;
    }
    const int64_t left = until_ns - now_ns();
    if (left <= 0) return std::nullopt;
    changed_.wait_for(lock, std::chrono::nanoseconds(left));
  }
}

bool OutOfBand::has(int from, uint64_t about) {
  const Lock lock(mutex_);
  const auto &kept = from_[static_cast<size_t>(from)].kept;
  return std::any_of(kept.begin(), kept.end(), [&](const Message &m) { return m.about == about && !m.withdrawn; });
}

bool OutOfBand::has_other(int from, uint64_t about) {
  const Lock lock(mutex_);
  const auto &kept = from_[static_cast<size_t>(from)].kept;
  return std::any_of(kept.begin(), kept.end(), [&](const Message &m) { return m.about != about; });
}

void Member::say_out_of_band(int rank, uint64_t about, uint64_t number, uint32_t given_up,
                             std::span<const std::byte> bytes) noexcept {
  const OutOfBandHead head{peers_[rank].their_index, epoch_, static_cast<uint32_t>(rank_), given_up, about, number};
  std::array<std::byte, sizeof head + OutOfBand::kMostBytes> room;
  context_->control().tell(peers_[rank].process, Control::OutOfBand, pack(head, bytes, room));
}

void Member::exchange(const char *what, std::span<const int> ranks, std::span<const std::byte> mine, std::byte *all,
                      Deadline deadline, const std::function<void()> &look) {
  const uint64_t subject = subject_of(what, ranks, mine.size());
  const uint64_t number = out_of_band_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto name = [&] {
    return formatted("{} of '{}' on rank {}, {} of {} ranks", what, name_, rank_, ranks.size(), world_);
  };
  const uint64_t aborts = aborts_.load(std::memory_order_acquire);
  // Whoever gives up must not be met later by others who try again, and when it tries again it has need of what they had said.
  struct Undo {
    Member &member;
    std::span<const int> ranks;
    uint64_t subject, number;
    bool done = false;
    std::vector<std::pair<int, OutOfBand::Message>> taken{};
    ~Undo() {
      if (done) return;
      for (const int q : ranks)
        if (q != member.rank_) member.say_out_of_band(q, subject, number, 1, {});
      for (auto &[q, message] : taken) member.out_of_band_.give_back(q, std::move(message));
    }
  } undo{*this, ranks, subject, number};
  undo.taken.reserve(ranks.size());
  // A rank that is gone and has not said its word is waited for in vain, and so is the exchange.
  const auto check_there = [&](int r) {
    if (r == rank_) return;
    const PeerRank &p = peers_[r];
    // Asked before the look: what a rank said before it went has come before that is known.
    const bool lost = p.process && p.process->lost.load(std::memory_order_acquire);
    const bool left = p.left.load(std::memory_order_acquire);
    if ((!lost && !left) || out_of_band_.has(r, subject)) return;
    if (lost) isthmus::fail(Code::PeerLost, "{}: {} is gone: {}", name(), rank_text(r), p.process->lost_text());
    isthmus::fail(Code::PeerLost, "{}: {} has destroyed its side of the communicator", name(), rank_text(r));
  };
  for (const int q : ranks)
    if (q != rank_) say_out_of_band(q, subject, number, 0, mine);
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int q = ranks[i];
    std::byte *const to = all + i * mine.size();
    if (q == rank_) {
      std::memcpy(to, mine.data(), mine.size());
      continue;
    }
    for (std::optional<OutOfBand::Message> got; !got;) {
      for (const int r : ranks.subspan(i)) check_there(r);
      got = out_of_band_.take(q, subject, std::min(now_ns() + kLookNs, deadline.ns()));
      if (got) {
        std::memcpy(to, got->bytes.data(),
                    std::min(got->bytes.size(), mine.size()));  // the sizes are one where the subject is
        undo.taken.emplace_back(q, std::move(*got));
        break;
      }
      if (look) look();
      if (deadline.passed())
        isthmus::fail(Code::Timeout, "{}: {} {}", name(), rank_text(q),
                      out_of_band_.has_other(q, subject) ? "names other ranks (or another size): all must give the same list"
                                                         : "has not called it in time");
      if (left_.load(std::memory_order_acquire))
        isthmus::fail(Code::Aborted, "{}: the communicator was destroyed here meanwhile", name());
      if (aborts_.load(std::memory_order_acquire) != aborts)
        isthmus::fail(Code::Aborted, "{}: the communicator was aborted here meanwhile", name());
      if (interrupt_wanted())
        isthmus::fail(Code::Interrupted, "{}: interrupted while it waited for {}", name(), rank_text(q));
    }
  }
  undo.done = true;
}

// No exchange is of 0 bytes.
void Member::tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine) noexcept {
  const uint64_t subject = subject_of(what, ranks, 0);
  const uint64_t number = out_of_band_number_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (const int q : ranks)
    if (q != rank_) say_out_of_band(q, subject, number, 0, mine);
}

std::optional<std::vector<std::byte>> Member::hear(const char *what, std::span<const int> ranks, int from) {
  auto message = out_of_band_.take(from, subject_of(what, ranks, 0), 0);
  if (!message) return std::nullopt;
  return std::move(message->bytes);
}

}  // namespace isthmus::engine
