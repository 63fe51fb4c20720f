// What the members do (grow), and what a process does that comes with a ticket (join).
#include "comm/grow.hpp"

#include <algorithm>
#include <optional>

#include "base/log.hpp"
#include "bootstrap/newcomers.hpp"
#include "comm/grow_exchange.hpp"
#include "net/siphash.hpp"
#include "net/wait.hpp"
#include "net/wire.hpp"

namespace isthmus::comm {
// What each member says first: all must ask for the same.
struct Ask {
  uint64_t ticket = 0;  // a hash of it
  int32_t newcomers = 0;
  bool made_here = false;
  bool keeps = false;  // the numbers of the members
  std::vector<int> slots;
  std::string name;
};

namespace {

using bootstrap::Blob;

constexpr double kTicketSeconds = 600;      // where the program names no time
constexpr double kMostTicketSeconds = 1e6;  // some eleven days
constexpr int64_t kAskNs = 20'000'000;      // between two looks of a newcomer for the last word
constexpr const char *kLastWord = "grown";  // what the members tell a newcomer over the new communicator
constexpr std::byte kHave{1}, kHaveNot{2};
// What a rank contributes to the first agreement; a rank that calls agree() or shrink() contributes something else.
constexpr uint64_t kGrows = 0x6973'746d'6772'6f77, kGoesOver = 0x6973'746d'6f76'6572;

Blob pack(const Ask &ask) {
  Blob out;
  net::Writer w(out);
  w.number(ask.ticket)
      .number(ask.newcomers)
      .number(static_cast<uint8_t>(ask.made_here))
      .number(static_cast<uint8_t>(ask.keeps));
  w.number(static_cast<uint16_t>(ask.slots.size()));
  for (const int slot : ask.slots) w.number(static_cast<int32_t>(slot));
  w.text(ask.name);
  return out;
}

Ask unpack_ask(const Blob &blob, int rank) {
  net::Reader r(blob);
  Ask ask;
  ask.ticket = r.number<uint64_t>();
  ask.newcomers = r.number<int32_t>();
  ask.made_here = r.number<uint8_t>() != 0;
  ask.keeps = r.number<uint8_t>() != 0;
  const size_t slots = r.number<uint16_t>();
  for (size_t i = 0; i < slots && r.ok(); ++i) ask.slots.push_back(r.number<int32_t>());
  ask.name = r.text(0xffff);
  if (!r.done()) fail(Code::Mismatch, "grow: rank {} asks for what cannot be read", rank);
  return ask;
}

std::string list_of(const std::vector<int> &numbers) {
  std::string text;
  for (const int n : numbers) text += formatted("{}{}", text.empty() ? "" : ",", n);
  return text.empty() ? "none" : text;
}

// Throws where two ranks ask for unlike things, with the same text on all ranks.
void compare(const std::vector<Ask> &asks, const Numbering &numbering) {
  const Ask &first = asks[0];
  const int one = numbering.slot(0);
  for (size_t r = 1; r < asks.size(); ++r) {
    const Ask &other = asks[r];
    const int two = numbering.slot(static_cast<int>(r));
    if (other.newcomers != first.newcomers)
      fail(Code::Mismatch, "grow: rank {} admits {} newcomers and rank {} {}: give all ranks the same number", one,
           first.newcomers, two, other.newcomers);
    if (other.ticket != first.ticket)
      fail(Code::Mismatch, "grow: rank {} and rank {} have different tickets: give all ranks the same one", one, two);
    if (other.keeps != first.keeps)
      fail(Code::Mismatch,
           "grow: on rank {} the members keep their numbers, on rank {} not: give all ranks the same `dense`",
           first.keeps ? one : two, first.keeps ? two : one);
    if (other.slots != first.slots)
      fail(Code::Mismatch, "grow: rank {} gives the slots {} and rank {} {}: give all ranks the same list", one,
           list_of(first.slots), two, list_of(other.slots));
    if (other.name != first.name)
      fail(Code::Mismatch, "grow: rank {} names the communicator '{}' and rank {} '{}': give all ranks the same name", one,
           first.name, two, other.name);
  }
}

int host_of(const std::vector<Ask> &asks) {
  for (size_t r = 0; r < asks.size(); ++r)
    if (asks[r].made_here) return static_cast<int>(r);
  fail(Code::Argument,
       "grow: no rank of this communicator has made the ticket, or that one has ended: a rank that lives makes another");
}

uint64_t hash_of(const std::string &ticket) {
  const bootstrap::Bytes16 h = net::siphash128({}, net::as_bytes(ticket));
  return net::Reader(std::as_bytes(std::span(h))).number<uint64_t>();
}

// Tells the newcomers how it ended, over the new communicator.
void say_last_word(Communicator &made, const std::vector<int> &newcomers, bool have) noexcept {
  std::vector<int> all;
  for (int r = 0; r < made.size(); ++r) all.push_back(r);
  made.local().exchange().tell(kLastWord, all, std::span(have ? &kHave : &kHaveNot, 1), newcomers);
}

Deadline part_of(Deadline whole, double part) { return Deadline(part * static_cast<double>(whole.left_ns()) * 1e-9); }

}  // namespace

// ---- the members ---------------------------------------------------------------------------------------------------------------------

// One grow on one member. The ranks agree twice: that all are here (unless they just have), and that all have the new communicator.
//
//   agree: all are here --> compare what they ask for --> make it with the newcomers --> agree: have all made it? --> yes: done
//                                                                                                              \--> no: nobody has it
//
// The host speaks for the newcomers in the second agreement. Afterwards all members tell them how it ended: the host over its connection, the
// others over the new communicator, so that the newcomers hear it although the host is lost.
class Growing {
 public:
  static std::shared_ptr<Communicator> grow(Communicator &whole, const GrowRequest &request);
  static std::shared_ptr<Communicator> resume(Communicator &whole, const GrowRequest &request);
  static Subject unconfirmed(Communicator &whole) {
    take_turn(whole.split_mutex_, whole, "reconfigure", Deadline(whole.timeout()));
    const Lock lock(whole.split_mutex_, kLocked);
    return whole.confirmation_.subject(whole);
  }
  static std::shared_ptr<Communicator> join(const JoinRequest &request);

 private:
  Growing(Communicator &whole, const GrowRequest &request, const bootstrap::Ticket &ticket, const AbortWatch &watch,
          Confirmation &confirmation)
      : whole_(whole),
        local_(*whole.local_),
        ticket_(ticket),
        numbers_(numbers_of(whole, request)),
        ranks_(GrownRanks::of(whole.terms().numbering, request.newcomers, request.slots, numbers_)),
        deadline_(whole.timeout()),
        making_(part_of(deadline_, 0.8)),
        parent_(request.ends ? Communicator::Parent::Ends : Communicator::Parent::GoesOn),
        agreed_(request.agreed),
        asking_{request.suspects, deadline_, watch},
        confirmation_(confirmation) {
    mine_.ticket = hash_of(request.ticket);
    mine_.newcomers = request.newcomers;
    mine_.made_here = bootstrap::made_here(ticket);
    mine_.keeps = numbers_ == Numbers::Kept;
    mine_.slots = ranks_.slots;
    mine_.name = request.name.empty() ? whole.name() + "/grow" : request.name;
  }
  std::shared_ptr<Communicator> made(Subject what);
  std::string name() const { return formatted("grow of '{}' on rank {}", whole_.name(), own_slot(whole_)); }
  static Numbers numbers_of(const Communicator &whole, const GrowRequest &request) {
    return request.numbers.value_or(whole.terms().numbering.has_holes() ? Numbers::Kept : Numbers::Dense);
  }
  static Subject subject(const Communicator &whole, const GrowRequest &request) {
    const uint64_t kept = numbers_of(whole, request) == Numbers::Kept;
    return {Subject::Of::Grow, hash_of(request.ticket) ^ (request.ends ? kGoesOver : kGrows) ^ (kept << 63)};
  }
  void begin_together();
  std::shared_ptr<Communicator> make(PartExchange &members);
  void tell_newcomers(Communicator *made, bool have, const Status &why) noexcept;

  Communicator &whole_;
  rank::Rank &local_;
  const bootstrap::Ticket ticket_;
  const Numbers numbers_;
  const GrownRanks ranks_;
  const Deadline deadline_, making_;  // of the whole, and of all but the last agreement
  const Communicator::Parent parent_;
  const bool agreed_;
  const Asking asking_;
  Confirmation &confirmation_;
  Ask mine_;
  std::optional<bootstrap::Newcomers> come_;  // on the host
};

void Growing::begin_together() {
  const bool failed = local_.core().failed();
  const uint64_t mine = parent_ == Communicator::Parent::Ends ? kGoesOver : kGrows;
  const uint64_t flags = agree(local_, failed ? 0 : mine, asking_).flags;
  if (failed) {
    const Status why = local_.core().failure();
    throw Error(why.code, formatted("{}; a communicator that has failed is shrunk first", why.text), why.ranks);
  }
  std::vector<int> lost;
  const rank::RankSet members = local_.agreement().members();
  for (int r = 0; r < whole_.size(); ++r)
    if (!members.has(r)) lost.push_back(r);
  if (!lost.empty())
    throw Error(Code::PeerLost,
                formatted("rank{} {} lost: shrink first, and grow what is left", lost.size() == 1 ? "" : "s",
                          list_of(whole_.terms().numbering.slots_of(lost)) + (lost.size() == 1 ? " is" : " are")),
                lost);
  if (flags != mine) fail(Code::Aborted, "on another rank the communicator has failed, or it made another call");
}

std::shared_ptr<Communicator> Growing::make(PartExchange &members) {
  std::vector<Ask> asks;
  for (const Blob &blob : members.all_gather(pack(mine_), making_))
    asks.push_back(unpack_ask(blob, whole_.terms().numbering.slot(static_cast<int>(asks.size()))));
  compare(asks, whole_.terms().numbering);
  const int host = host_of(asks);
  const std::string said = formatted("{} ranks of '{}' and {} newcomers", whole_.size(), whole_.name(), mine_.newcomers);
  if (host == whole_.rank()) {
    come_.emplace(ticket_, ranks_.slots, part_of(making_, 0.8), [&] { members.look(); });
    come_->welcome(
        {0, ranks_.world(), 0, ranks_.numbering.slots(), making_.left_ns(), deadline_.left_ns(), mine_.name, said},
        ranks_.newcomers);
  }
  GrowExchange exchange(members, ranks_, host, come_ ? &*come_ : nullptr);
  join::Invitation invitation =
      whole_.invite(exchange, ranks_.members[static_cast<size_t>(whole_.rank())], ranks_.numbering, making_, parent_);
  invitation.name = mine_.name;
  invitation.members = said;
  invitation.keeps = mine_.keeps;
  auto made = Communicator::make(invitation, whole_.use_.again());
  if (come_) try {
      come_->await_made(part_of(deadline_, 0.5), [&] { members.look(); });
    } catch (...) {
      made->destroy();
      throw;
    }
  return made;
}

void Growing::tell_newcomers(Communicator *made, bool have, const Status &why) noexcept {
  if (made) say_last_word(*made, ranks_.newcomers, have);
  if (!come_) return;
  if (have) come_->kept();
  else come_->failed(why);
}

std::shared_ptr<Communicator> Growing::made(Subject what) {
  if (const auto last = confirmation_.resume(whole_, what, asking_); last && last->made) {
    say_last_word(*last->made, ranks_.newcomers, true);
    return last->made;
  }
  if (!agreed_) begin_together();
  std::vector<int> all;
  for (int r = 0; r < whole_.size(); ++r) all.push_back(r);
  PartExchange members(local_, formatted("grow #{}", local_.agreement().number()), all, PartExchange::WholeFailed::Ends,
                       &asking_.watch);
  std::shared_ptr<Communicator> mine;
  Status why;
  try {
    mine = make(members);
  } catch (const Error &e) { why = e.why(); } catch (const std::exception &e) {
    why = {Code::Resource, e.what()};
  }
  if (!mine) {
    members.give_up(why);
    if (come_) come_->failed(why);  // at once: they may wait for this rank
  }
  Confirmed all_have;
  try {
    all_have = confirmation_.confirm(whole_, what, mine, mine != nullptr, asking_);
    members.over();
  } catch (...) {  // whether the others have it is not known
    if (!why.ok()) throw Error(std::move(why));
    throw;
  }
  if (!all_have.made && why.ok())
    why = all_have.out.empty() ? Status{Code::System, "another rank could not make it"}
                               : Status{Code::PeerLost, "a rank was lost meanwhile: shrink first", std::move(all_have.out)};
  tell_newcomers(mine.get(), all_have.made != nullptr, why);
  if (all_have.made) return all_have.made;
  throw Error(std::move(why));
}

std::shared_ptr<Communicator> Growing::grow(Communicator &whole, const GrowRequest &request) {
  if (whole.destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", whole.name());
  if (group_open()) fail(Code::Argument, "grow: not inside a group");
  const bootstrap::Ticket ticket = bootstrap::parse_entry(request.ticket);
  if (request.newcomers < 1 || request.newcomers > bootstrap::kMostNewcomers)
    fail(Code::Argument, "grow: {} newcomers: must be from 1 to {}", request.newcomers, bootstrap::kMostNewcomers);
  const AbortWatch from_now(*whole.local_);
  take_turn(whole.split_mutex_, whole, "grow", Deadline(whole.timeout()));
  const Lock lock(whole.split_mutex_, kLocked);
  Growing growing(whole, request, ticket, request.watch ? *request.watch : from_now, whole.confirmation_);
  try {
    return growing.made(subject(whole, request));
  } catch (const Error &e) { throw Error(e.code(), formatted("{}: {}", growing.name(), e.text()), e.ranks()); }
}

std::shared_ptr<Communicator> Growing::resume(Communicator &whole, const GrowRequest &request) {
  take_turn(whole.split_mutex_, whole, "reconfigure", Deadline(whole.timeout()));
  const Lock lock(whole.split_mutex_, kLocked);
  if (whole.confirmation_.subject(whole).of != Subject::Of::Grow) return nullptr;
  const Asking asking{request.suspects, Deadline(whole.timeout()), *request.watch};
  const auto last = whole.confirmation_.resume(whole, subject(whole, request), asking);
  if (!last || !last->made) return nullptr;
  const GrownRanks ranks =
      GrownRanks::of(whole.terms().numbering, request.newcomers, request.slots, numbers_of(whole, request));
  say_last_word(*last->made, ranks.newcomers, true);
  return last->made;
}

// ---- the newcomer --------------------------------------------------------------------------------------------------------------------

namespace {

// Whether the others have the new communicator: the host says so over its connection, the other members over the communicator.
void await_last_word(bootstrap::Entry &entry, Communicator &made) {
  std::vector<int> all;
  for (int r = 0; r < made.size(); ++r) all.push_back(r);
  struct Forgets {
    rank::RankExchange &exchange;
    const std::vector<int> &ranks;
    ~Forgets() { exchange.forget(kLastWord, ranks); }
  } const forgets{made.local().exchange(), all};
  std::optional<Error> gone;  // the host
  while (!entry.whole().passed()) {
    const Deadline until = Deadline::at_ns(std::min(entry.whole().ns(), now_ns() + kAskNs));
    for (const int r : all) {
      const auto said = r == made.rank() ? std::nullopt : made.local().exchange().hear(kLastWord, all, r);
      if (said && said->size() == 1 && said->front() == kHave) return;
      if (said)
        fail(Code::Aborted, "join: rank {} says that the members have not all made the communicator",
             made.terms().numbering.slot(r));
    }
    if (gone) {
      net::sleep_until(until);
      continue;
    }
    try {
      if (entry.kept(until)) return;
    } catch (const Error &e) {
      if (e.code() != Code::PeerLost || entry.refused()) throw;
      gone = e;
    }
  }
  if (gone) throw Error(*gone);
  fail(Code::Timeout, "join: the members have not said in time whether all have made the communicator");
}

}  // namespace

std::shared_ptr<Communicator> Growing::join(const JoinRequest &request) {
  if (group_open()) fail(Code::Argument, "join: not inside a group");
  if (request.slot < bootstrap::kAnySlot)
    fail(Code::Argument, "join: slot {}: must be 0 or more, or -1 for any", request.slot);
  const bootstrap::Ticket ticket = bootstrap::parse_entry(request.ticket);
  begin_log(request.settings);
  process::Context::Lease use = process::Context::acquire(request.settings, ticket.addresses.front().text());
  bootstrap::Entry entry(ticket, request.settings, request.slot, Deadline(request.settings.real(Setting::Timeout)));
  const bootstrap::Welcome &welcome = entry.welcome();
  note_log_ranks(std::span(&welcome.slot, 1), LogRanks::MaybeSome);
  const auto context = use.context();
  join::Invitation invitation{welcome.name, welcome.members, welcome.rank,   welcome.world, request.settings, context,
                              std::nullopt, entry,           entry.making(), true,          welcome.slot,     welcome.slots};
  std::shared_ptr<Communicator> made;
  try {
    made = Communicator::make(invitation, std::move(use));
  } catch (const Error &e) {
    entry.say_failed({e.code(), e.text()});
    throw;
  }
  entry.say_made();
  try {
    await_last_word(entry, *made);
  } catch (...) {
    made->destroy();
    throw;
  }
  return made;
}

std::string make_ticket(const Communicator &comm, double seconds) {
  if (!(seconds >= 0) || seconds > kMostTicketSeconds)
    fail(Code::Argument, "ticket: timeout {}: must be above 0 and at most {} seconds, or 0 for {}", seconds,
         kMostTicketSeconds, kTicketSeconds);
  return bootstrap::entry_text(bootstrap::create_entry(comm.settings(), seconds > 0 ? seconds : kTicketSeconds));
}

int joiners(const std::string &ticket) { return static_cast<int>(bootstrap::waiting(bootstrap::parse_entry(ticket))); }

std::shared_ptr<Communicator> grow(Communicator &whole, const GrowRequest &request) { return Growing::grow(whole, request); }

Subject unconfirmed(Communicator &whole) { return Growing::unconfirmed(whole); }

std::shared_ptr<Communicator> resume_grow(Communicator &whole, const GrowRequest &request) {
  return Growing::resume(whole, request);
}

std::shared_ptr<Communicator> join_by_ticket(const JoinRequest &request) { return Growing::join(request); }

}  // namespace isthmus::comm
