#include "rank/rank_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "net/wait.hpp"
#include "net/wire.hpp"

namespace isthmus::rank {
namespace {

constexpr int64_t kLookNs =
    20'000'000;  // between two looks whether the other rank is there, and whether the program wants to stop
// The lowest rank says whom it waits for once that has lasted so long, and again, for those that have come meanwhile.
constexpr int64_t kTellNs = 50'000'000, kTellAgainNs = 1'000'000'000;

// Of the words of the lowest rank, beside the subject of the exchange.
constexpr uint64_t kAll = 0x616c'6c00'0000'0001, kNote = 0x6e6f'7465'0000'0001;
constexpr size_t kAnySize = SIZE_MAX;  // ranks may contribute as much as they like

// The hash (FNV-1a) of the name, the ranks and the size of an exchange.
uint64_t subject_of(std::string_view what, std::span<const int> ranks, size_t bytes) {
  uint64_t h = 0xcbf29ce484222325ull;
  const auto add = [&](uint64_t value) {
    for (int i = 0; i < 8; ++i) h = (h ^ (value >> (8 * i) & 0xff)) * 0x100000001b3ull;
  };
  for (const char c : what) add(static_cast<unsigned char>(c));
  add(bytes);
  for (const int r : ranks) add(static_cast<uint64_t>(r));
  return bytes == 0 || bytes == kAnySize ? h & ~OutOfBand::kOfOneSize : h | OutOfBand::kOfOneSize;
}

}  // namespace

// One all-gather. A rank may give up, and come again later. What it said the first time must not count then, so the rank withdraws it: the lowest rank
// takes the newer word, unless it has passed on the older one already. Then the rank hears, when it comes again, what all the others have got. A rank that
// gives up also gives back the messages that it has taken: it needs them when it comes again.
struct RankExchange::Gather {
  struct Note {  // what the lowest rank tells the others while they wait
    enum class Of : uint32_t { WaitsFor = 1, Lost = 2, Left = 3 };
    Of of{};
    int32_t rank = -1;
  };
  RankExchange &by;
  const char *what;
  std::span<const int> ranks;
  Deadline deadline;
  const std::function<void()> &look;
  About about;
  uint64_t number, aborts;
  Note note{};
  int64_t noted_ns = now_ns();
  bool done = false;
  // On the lowest rank what each of the others contributes, by its place in `ranks`; on the others, what the lowest rank has passed on.
  std::vector<std::optional<OutOfBand::Message>> taken{};
  bool fresh = true;  // all have what this rank says now

  ~Gather() {
    if (done) return;
    if (!leads()) by.say(ranks[0], about, number, process::OutOfBandHow::Withdraws, {});
    for (size_t i = taken.size(); i-- > 0;)
      if (taken[i]) by.inbox_.give_back(leads() ? ranks[i] : ranks[0], std::move(*taken[i]));
  }
  About other(uint64_t word) const { return {about.subject ^ word, about.turn}; }
  bool leads() const { return ranks[0] == by.core_.id.rank; }
  std::string name() const {
    const Identity &id = by.core_.id;
    return formatted("{} of '{}' on rank {}, {} of {} ranks", what, id.name, id.number(), ranks.size(), id.world);
  }
  // On the lowest rank.
  void tell(Note::Of of, int rank) {
    note = {of, rank};
    noted_ns = now_ns();
    for (const int q : ranks)
      if (q != by.core_.id.rank)
        by.say(q, other(kNote), by.next(), process::OutOfBandHow::Replaces, std::as_bytes(std::span(&note, 1)));
  }
  void tell_whom_it_waits_for(int rank) {
    if (now_ns() - noted_ns >= (note.rank == rank ? kTellAgainNs : kTellNs)) tell(Note::Of::WaitsFor, rank);
  }
  // On the others.
  void hear_note() {
    const auto said = by.inbox_.take(ranks[0], other(kNote), 0);
    if (said && said->bytes.size() == sizeof note) std::memcpy(&note, said->bytes.data(), sizeof note);
    if (std::find(ranks.begin(), ranks.end(), note.rank) == ranks.end()) note = {};
  }
  bool in_vain() const { return note.of == Note::Of::Lost || note.of == Note::Of::Left; }
  [[noreturn]] void fail_gone(int q, Note::Of how) {
    if (look) look();  // what has ended the whole communicator, or another's farewell, may say why it has gone
    if (leads()) tell(how, q);
    const PeerRank &p = by.core_.peers[static_cast<size_t>(q)];
    const std::string who = by.core_.id.text(q);
    if (how == Note::Of::Left) throw Error(Code::PeerLost, formatted("{}: {} {}", name(), who, engine::kHasLeft), {q});
    const std::string why = p.lost() ? p.process->lost_text() : by.core_.id.text(ranks[0]) + " says so";
    throw Error(Code::PeerLost, formatted("{}: {} is gone: {}", name(), who, why), {q});
  }
};

// ---- turns ---------------------------------------------------------------------------------------------------------------------------

uint64_t RankExchange::ExchangeTurns::take() {
  const uint64_t turn = given_up.empty() ? next++ : given_up.extract(given_up.begin()).value();
  going_on.insert(turn);
  return turn;
}

uint64_t RankExchange::ExchangeTurns::first_open() const {
  uint64_t first = next;
  if (!given_up.empty()) first = *given_up.begin();
  if (!going_on.empty()) first = std::min(first, *going_on.begin());
  return first;
}

// The turn of one call. It is given up where it has not ended.
class RankExchange::ExchangeTurn {
 public:
  ExchangeTurn(RankExchange &by, uint64_t subject) : by_(by), subject_(subject) {
    const auto all = by_.turns_.lock();
    number_ = (*all)[subject].take();
  }
  ~ExchangeTurn() {
    uint64_t open = 0;
    {
      const auto all = by_.turns_.lock();
      ExchangeTurns &turns = all->at(subject_);
      auto own = turns.going_on.extract(number_);
      if (!ended_) turns.given_up.insert(std::move(own));
      open = turns.first_open();
    }
    by_.inbox_.drop_turns(subject_, open);
  }
  ExchangeTurn(const ExchangeTurn &) = delete;
  ExchangeTurn &operator=(const ExchangeTurn &) = delete;
  About about() const { return {subject_, number_}; }
  void ended() { ended_ = true; }

 private:
  RankExchange &by_;
  const uint64_t subject_;
  uint64_t number_ = 0;
  bool ended_ = false;
};

// ---- the exchange --------------------------------------------------------------------------------------------------------------------

void RankExchange::say(int rank, About about, uint64_t number, process::OutOfBandHow how,
                       std::span<const std::byte> bytes) noexcept {
  const PeerRank &p = core_.peers[rank];
  const OutOfBandHead head{
      p.their_index, core_.id.epoch, static_cast<uint32_t>(core_.id.rank), static_cast<uint32_t>(how), about.subject,
      about.turn,    number};
  std::array<std::byte, sizeof head + OutOfBand::kMostMessage> room;
  core_.context->control().tell(p.process, Control::OutOfBand, pack(head, bytes, room));
}

// The wait for a rank is in vain where the rank is gone and has not said its word. The exchange is then in vain as well.
void RankExchange::check_there(Gather &gather, int q, About about) {
  if (q == core_.id.rank) return;
  const PeerRank &p = core_.peers[q];
  // These flags are read before the inbox. What a rank said before the rank went has come before the flag rises.
  const bool lost = p.lost(), left = p.left.load(std::memory_order_acquire);
  if ((!lost && !left) || inbox_.has(q, about)) return;
  gather.fail_gone(q, lost ? Gather::Note::Of::Lost : Gather::Note::Of::Left);
}

void RankExchange::check_goes_on(const Gather &gather, int q) {
  if (gather.look) gather.look();
  if (gather.deadline.passed()) {
    if (inbox_.has_other(q, std::array{gather.about.subject, gather.other(kAll).subject, gather.other(kNote).subject}))
      fail(Code::Timeout, "{}: {} names other ranks (or another size): all must give the same list", gather.name(),
           core_.id.text(q));
    throw Error(Code::Timeout, formatted("{}: {} has not called it in time", gather.name(), core_.id.text(q)), {q});
  }
  if (core_.left()) fail(Code::Aborted, "{}: the communicator was destroyed here meanwhile", gather.name());
  if (aborts() != gather.aborts) fail(Code::Aborted, "{}: the communicator was aborted here meanwhile", gather.name());
  if (net::interrupt_wanted())
    fail(Code::Interrupted, "{}: interrupted while it waited for {}", gather.name(), core_.id.text(q));
}

// On the lowest rank: what the next one contributes.
void RankExchange::receive(Gather &gather, size_t from) {
  const int q = gather.ranks[from];
  while (!gather.taken[from]) {
    for (size_t i = 1; i < gather.ranks.size(); ++i)
      if (!gather.taken[i]) check_there(gather, gather.ranks[i], gather.about);
    gather.taken[from] = inbox_.take(q, gather.about, std::min(now_ns() + kLookNs, gather.deadline.ns()));
    if (gather.taken[from]) return;
    gather.tell_whom_it_waits_for(q);
    check_goes_on(gather, q);
  }
}

void RankExchange::collect(Gather &gather) {
  gather.taken.resize(gather.ranks.size());
  do
    for (size_t i = 1; i < gather.ranks.size(); ++i) receive(gather, i);
  while (drop_given_up(gather));
}

bool RankExchange::drop_given_up(Gather &gather) {
  bool any = false;
  for (size_t i = 1; i < gather.ranks.size(); ++i) {
    if (!inbox_.was_withdrawn(gather.ranks[i], *gather.taken[i])) continue;
    gather.taken[i].reset();
    any = true;
  }
  return any;
}

// One stream of bytes, the size first, in as many messages as it needs. Of each rank the number of its word, and the word.
void RankExchange::send_all(const Gather &gather, std::span<const std::byte> mine) {
  net::ByteVector stream(sizeof(uint64_t));
  const auto add = [&](uint64_t number, std::span<const std::byte> bytes) {
    net::Writer(stream).number(number).number(static_cast<uint16_t>(bytes.size())).bytes(bytes);
  };
  add(gather.number, mine);
  for (size_t i = 1; i < gather.ranks.size(); ++i) add(gather.taken[i]->number, gather.taken[i]->bytes);
  const uint64_t size = stream.size();
  std::memcpy(stream.data(), &size, sizeof size);
  for (size_t at = 0; at < stream.size(); at += OutOfBand::kMostMessage) {
    const auto piece = std::span<const std::byte>(stream).subspan(at, std::min(stream.size() - at, OutOfBand::kMostMessage));
    for (const int q : gather.ranks.subspan(1)) say(q, gather.other(kAll), next(), process::OutOfBandHow::Says, piece);
  }
}

// On the others. For whom the lowest rank has waited before this rank called may be about another exchange, which it has given up; it says so again.
RankExchange::Bytes RankExchange::receive_all(Gather &gather) {
  const int lowest = gather.ranks[0];
  const About about = gather.other(kAll);
  const size_t most = sizeof(uint64_t) + gather.ranks.size() * (sizeof(uint64_t) + sizeof(uint16_t) + OutOfBand::kMostBytes);
  gather.hear_note();
  if (!gather.in_vain()) gather.note = {};
  Bytes stream;
  uint64_t size = sizeof size;
  while (stream.size() < size) {
    if (auto got = inbox_.take(lowest, about, std::min(now_ns() + kLookNs, gather.deadline.ns()))) {
      stream.insert(stream.end(), got->bytes.begin(), got->bytes.end());
      gather.taken.push_back(std::move(got));
      if (stream.size() >= sizeof size) std::memcpy(&size, stream.data(), sizeof size);
      if (size > most || stream.size() > size)
        fail(Code::Mismatch, "{}: {} passed on more than all ranks can have said", gather.name(), core_.id.text(lowest));
      continue;
    }
    gather.hear_note();
    if (gather.in_vain()) gather.fail_gone(gather.note.rank, gather.note.of);
    check_there(gather, lowest, about);
    check_goes_on(gather, gather.note.rank < 0 ? lowest : gather.note.rank);
  }
  gather.hear_note();
  return stream;
}

std::vector<RankExchange::Bytes> RankExchange::meet(Gather &gather, std::span<const std::byte> mine) {
  core_.context->progress().stand_in();
  std::vector<Bytes> all;
  if (gather.leads()) {
    collect(gather);
    send_all(gather, mine);
    all.emplace_back(mine.begin(), mine.end());
    for (size_t i = 1; i < gather.ranks.size(); ++i) all.push_back(std::move(gather.taken[i]->bytes));
  } else {
    say(gather.ranks[0], gather.about, gather.number, process::OutOfBandHow::Says, mine);
    const Bytes stream = receive_all(gather);
    net::Reader r(std::span<const std::byte>(stream).subspan(sizeof(uint64_t)));
    for (size_t i = 0; i < gather.ranks.size(); ++i) {
      const auto number = r.number<uint64_t>();
      const auto bytes = r.bytes(r.number<uint16_t>());
      all.emplace_back(bytes.begin(), bytes.end());
      if (gather.ranks[i] == core_.id.rank) gather.fresh = number == gather.number;
    }
    if (!r.done())
      fail(Code::Mismatch, "{}: {} passed on what cannot be read", gather.name(), core_.id.text(gather.ranks[0]));
  }
  gather.done = true;
  return all;
}

std::vector<RankExchange::Bytes> RankExchange::gather(const char *what, uint64_t turn, std::span<const int> ranks,
                                                      std::span<const std::byte> mine, Deadline deadline,
                                                      const std::function<void()> &look) {
  Gather gather{*this, what, ranks, deadline, look, {subject_of(what, ranks, kAnySize), turn}, next(), aborts()};
  return meet(gather, mine);
}

bool RankExchange::all_gather(const char *what, std::span<const int> ranks, std::span<const std::byte> mine, std::byte *all,
                              Deadline deadline) {
  const std::function<void()> none;
  ExchangeTurn turn(*this, subject_of(what, ranks, mine.size()));
  Gather gather{*this, what, ranks, deadline, none, turn.about(), next(), aborts()};
  const std::vector<Bytes> blobs = meet(gather, mine);
  turn.ended();
  for (size_t i = 0; i < blobs.size(); ++i)  // the sizes are one where the subject is
    std::memcpy(all + i * mine.size(), blobs[i].data(), std::min(blobs[i].size(), mine.size()));
  return gather.fresh;
}

void RankExchange::came(const process::OutOfBandHead &head, std::span<const std::byte> bytes) {
  if (head.how == static_cast<uint32_t>(process::OutOfBandHow::Replaces))
    return inbox_.replace(head.rank, {head.about, head.turn}, head.number, bytes);
  inbox_.came(head.rank, {head.about, head.turn}, head.number, bytes);
  uint64_t open = 0;
  {
    const auto all = turns_.lock();
    const auto at = all->find(head.about);
    if (at != all->end()) open = at->second.first_open();
  }
  if (head.turn < open) inbox_.drop_turns(head.about, open);
}

// The subject has 0 bytes, and no exchange has: so the two do not meet.
void RankExchange::tell(const char *what, std::span<const int> ranks, std::span<const std::byte> mine,
                        std::span<const int> whom) noexcept {
  const uint64_t subject = subject_of(what, ranks, 0);
  const uint64_t number = next();
  for (const int q : whom)
    if (q != core_.id.rank) say(q, subject, number, process::OutOfBandHow::Says, mine);
}

std::optional<RankExchange::Bytes> RankExchange::hear(const char *what, std::span<const int> ranks, int from) {
  auto message = inbox_.take(from, subject_of(what, ranks, 0), 0);
  if (!message) return std::nullopt;
  return std::move(message->bytes);
}

void RankExchange::forget(const char *what, std::span<const int> ranks) { inbox_.forget(subject_of(what, ranks, 0)); }

}  // namespace isthmus::rank
