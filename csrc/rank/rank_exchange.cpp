#include "rank/rank_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "process/control_wire.hpp"

namespace isthmus::rank {
namespace {

constexpr int64_t kLookNs =
    20'000'000;  // between two looks whether the other rank is there, and whether the program wants to stop

// The hash (FNV-1a) of the name, the ranks and the size of an exchange.
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

// One all-gather. A rank may give up. Other ranks that try again later must not meet its old message, so the rank withdraws the message. When the
// rank itself tries again, the rank needs what the others had said. So the rank gives back the messages that the rank has taken.
struct RankExchange::Gather {
  RankExchange &by;
  const char *what;
  std::span<const int> ranks;
  Deadline deadline;
  const std::function<void()> &look;
  uint64_t subject, number, aborts;
  bool done = false;
  std::vector<std::pair<int, OutOfBand::Message>> taken{};

  ~Gather() {
    if (done) return;
    for (const int q : ranks)
      if (q != by.core_.id.rank) by.say(q, subject, number, 1, {});
    for (auto &[q, message] : taken) by.inbox_.give_back(q, std::move(message));
  }
  std::string name() const {
    const Identity &id = by.core_.id;
    return formatted("{} of '{}' on rank {}, {} of {} ranks", what, id.name, id.number(), ranks.size(), id.world);
  }
};

void RankExchange::say(int rank, uint64_t about, uint64_t number, uint32_t given_up,
                       std::span<const std::byte> bytes) noexcept {
  const PeerRank &p = core_.peers[rank];
  const OutOfBandHead head{p.their_index, core_.id.epoch, static_cast<uint32_t>(core_.id.rank), given_up, about, number};
  std::array<std::byte, sizeof head + OutOfBand::kMostBytes> room;
  core_.context->control().tell(p.process, Control::OutOfBand, pack(head, bytes, room));
}

// The wait for a rank is in vain where the rank is gone and has not said its word. The exchange is then in vain as well.
void RankExchange::check_there(const Gather &gather, int q) {
  if (q == core_.id.rank) return;
  const PeerRank &p = core_.peers[q];
  // These flags are read before the inbox. What a rank said before the rank went has come before the flag rises.
  const bool lost = p.lost(), left = p.left.load(std::memory_order_acquire);
  if ((!lost && !left) || inbox_.has(q, gather.subject)) return;
  if (lost)
    throw Error(Code::PeerLost, formatted("{}: {} is gone: {}", gather.name(), core_.id.text(q), p.process->lost_text()),
                {q});
  throw Error(Code::PeerLost,
              formatted("{}: {} has destroyed its side of the communicator", gather.name(), core_.id.text(q)), {q});
}

void RankExchange::check_goes_on(const Gather &gather, int q) {
  if (gather.look) gather.look();
  if (gather.deadline.passed()) {
    if (inbox_.has_other(q, gather.subject))
      fail(Code::Timeout, "{}: {} names other ranks (or another size): all must give the same list", gather.name(),
           core_.id.text(q));
    throw Error(Code::Timeout, formatted("{}: {} has not called it in time", gather.name(), core_.id.text(q)), {q});
  }
  if (core_.left()) fail(Code::Aborted, "{}: the communicator was destroyed here meanwhile", gather.name());
  if (aborts() != gather.aborts) fail(Code::Aborted, "{}: the communicator was aborted here meanwhile", gather.name());
  if (interrupt_wanted()) fail(Code::Interrupted, "{}: interrupted while it waited for {}", gather.name(), core_.id.text(q));
}

OutOfBand::Message RankExchange::receive(Gather &gather, size_t from) {
  const int q = gather.ranks[from];
  for (;;) {
    for (const int r : gather.ranks.subspan(from)) check_there(gather, r);
    if (auto got = inbox_.take(q, gather.subject, std::min(now_ns() + kLookNs, gather.deadline.ns())))
      return std::move(*got);
    check_goes_on(gather, q);
  }
}

void RankExchange::all_gather(const char *what, std::span<const int> ranks, std::span<const std::byte> mine, std::byte *all,
                              Deadline deadline, const std::function<void()> &look) {
  Gather gather{*this,
                what,
                ranks,
                deadline,
                look,
                subject_of(what, ranks, mine.size()),
                number_.fetch_add(1, std::memory_order_relaxed) + 1,
                aborts()};
  gather.taken.reserve(ranks.size());
  core_.context->progress().stand_in();
  for (const int q : ranks)
    if (q != core_.id.rank) say(q, gather.subject, gather.number, 0, mine);
  for (size_t i = 0; i < ranks.size(); ++i) {
    std::byte *const to = all + i * mine.size();
    if (ranks[i] == core_.id.rank) {
      std::memcpy(to, mine.data(), mine.size());
      continue;
    }
    gather.taken.emplace_back(ranks[i], receive(gather, i));
    const std::vector<std::byte> &bytes = gather.taken.back().second.bytes;
    std::memcpy(to, bytes.data(), std::min(bytes.size(), mine.size()));  // the sizes are one where the subject is
  }
  gather.done = true;
}

// The subject has 0 bytes, and no exchange has: so the two do not meet.
void RankExchange::tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine) noexcept {
  const uint64_t subject = subject_of(what, ranks, 0);
  const uint64_t number = number_.fetch_add(1, std::memory_order_relaxed) + 1;
  for (const int q : ranks)
    if (q != core_.id.rank) say(q, subject, number, 0, mine);
}

std::optional<std::vector<std::byte>> RankExchange::hear(const char *what, std::span<const int> ranks, int from) {
  auto message = inbox_.take(from, subject_of(what, ranks, 0), 0);
  if (!message) return std::nullopt;
  return std::move(message->bytes);
}

void RankExchange::forget(const char *what, std::span<const int> ranks) { inbox_.forget(subject_of(what, ranks, 0)); }

}  // namespace isthmus::rank
