// Communicators that are made from a communicator: its parts (split), and what is left of it without some ranks (shrink).
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/clock.hpp"
#include "base/format.hpp"
#include "comm/communicator.hpp"
#include "comm/part_exchange.hpp"

namespace isthmus::comm {
namespace {

struct Choice {
  int32_t color, key;
};

// What every rank has chosen, by slot; no color for a hole.
struct Choices {
  std::vector<Choice> all;
  uint64_t number;  // of the operation that has brought the choices, the same on all ranks
};

// Collective over the whole communicator, and the only such step of a split: an all_gather, which has its place in the order of operations.
Choices tell_choices(Communicator &whole, const Choice &mine, double seconds) {
  std::vector<Choice> all(static_cast<size_t>(whole.terms().numbering.slots()), Choice{-1, 0});
  CallRequest r;
  r.collective = plan::Collective::AllGather;
  r.send = &mine;
  r.recv = all.data();
  r.count = sizeof mine;
  r.dtype = static_cast<int>(DType::UInt8);
  r.timeout = seconds;
  r.label = "split";
  struct Release {
    void operator()(engine::Operation *op) const noexcept { engine::OperationPool::instance().release(op); }
  };
  const std::unique_ptr<engine::Operation, Release> op(engine::OperationPool::instance().take());
  whole.prepare(r, *op);
  whole.make_ready(*op);
  whole.local().run(op.get());
  whole.local().driver().wait(op.get(), INT64_MAX);
  if (op->end.result != Code::Ok) throw Error(engine::status_of(whole.local().core(), *op));
  return {std::move(all), op->sequence};
}

// The ranks of a color, ordered by key, then by rank.
std::vector<int> ranks_of(const Numbering &numbering, const std::vector<Choice> &choices, int color) {
  const auto choice = [&](int rank) -> const Choice & { return choices[static_cast<size_t>(numbering.slot(rank))]; };
  std::vector<int> ranks;
  for (int r = 0; r < numbering.ranks(); ++r)
    if (choice(r).color == color) ranks.push_back(r);
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) { return choice(a).key < choice(b).key; });
  return ranks;
}

}  // namespace

join::Invitation Communicator::invite(bootstrap::Exchange &exchange, int rank, const Numbering &numbering, Deadline deadline,
                                      Parent what) const {
  const join::Parent parent{key_, topology_.ranks[static_cast<size_t>(this->rank())], timeout(),
                            what == Parent::Ends ? local_.get() : nullptr};
  join::Invitation made{{}, {}, rank, numbering.ranks(), settings_, context_, parent, exchange, deadline};
  made.slot = numbering.slot(rank);
  made.slots = numbering.slots();
  return made;
}

// A split has two steps:
//   1. All ranks of this communicator tell their choices. A rank with a negative color is done then.
//   2. The ranks of each color make their part among themselves. A failure of this step is a failure of that color alone.
//
//   rank 0, color 0   all_gather of choices --\  /-- joins the part of color 0 with the other ranks of color 0
//                                              ><
//   rank 1, color 1   all_gather of choices --/  \-- joins the part of color 1 with the other ranks of color 1
std::shared_ptr<Communicator> Communicator::split(int color, int key, const std::string &name) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", this->name());
  const double seconds = timeout();
  take_turn(split_mutex_, *this, "split", Deadline(seconds));
  const Lock lock(split_mutex_, kLocked);
  const Deadline deadline(seconds);  // of this call: the wait for its turn has its own
  const Choices choices = tell_choices(*this, {color, key}, seconds);
  const uint64_t split = ++splits_;  // equal on all ranks, as all take part in each
  if (color < 0) return nullptr;
  const std::vector<int> members = ranks_of(terms_.numbering, choices.all, color);
  const auto mine = std::find(members.begin(), members.end(), rank());
  PartExchange exchange(*local_, formatted("split #{}", choices.number), members);
  join::Invitation invitation =
      invite(exchange, static_cast<int>(mine - members.begin()), Numbering(static_cast<int>(members.size())), deadline);
  invitation.name = !name.empty() ? name : formatted("{}/split{}", this->name(), split > 1 ? formatted(" {}", split) : "");
  try {
    return make(invitation, use_.again());
  } catch (const Error &) { throw; } catch (const std::exception &e) {  // no memory: an Error the others know of already
    exchange.give_up({Code::Resource, e.what()});
    throw;
  }
}

void Communicator::exchange(const std::vector<int> &ranks, std::span<const std::byte> send, std::byte *recv,
                            double timeout) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", name());
  if (send.empty() || send.size() > rank::OutOfBand::kMostBytes || !send.data() || !recv)
    fail(Code::Argument, "exchange: {} bytes: give 1 to {}, and buffers for them", send.size(), rank::OutOfBand::kMostBytes);
  if (std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end() || ranks.empty() ||
      ranks.front() < 0 || ranks.back() >= terms_.numbering.slots() ||
      std::find(ranks.begin(), ranks.end(), own_slot(*this)) == ranks.end())
    fail(Code::Argument, "exchange: the ranks must be ascending, from 0 to {}, and rank {} among them",
         terms_.numbering.slots() - 1, own_slot(*this));
  if (timeout < 0)
    fail(Code::Argument, "exchange: timeout {}: must be above 0 seconds, or 0 for the communicator's", timeout);
  local_->exchange().all_gather("exchange", terms_.numbering.ranks_of("exchange", ranks), send, recv,
                                Deadline(timeout > 0 ? timeout : this->timeout()));
}

// What is left of a communicator without some of its ranks.
class Shrinking {
 public:
  Shrinking(Communicator &whole, const std::string &name, Numbers numbers, Deadline deadline, const AbortWatch &watch,
            Confirmation &confirmation)
      : whole_(whole),
        numbers_(numbers),
        local_(*whole.local_),
        name_(name.empty() ? whole.name() + "/shrink" : name),
        deadline_(deadline),
        watch_(watch),
        confirmation_(confirmation) {}
  std::shared_ptr<Communicator> to(const std::vector<int> &left,
                                   Communicator::Parent parent);           // the same list on all of them
  std::shared_ptr<Communicator> agreed(const std::vector<int> &excluded);  // lists may be unlike

 private:
  int number_in(const std::vector<int> &left) const {
    return static_cast<int>(std::find(left.begin(), left.end(), whole_.rank()) - left.begin());
  }
  bool any_lost(const std::vector<int> &left) const {
    return std::any_of(left.begin(), left.end(), [&](int q) { return local_.peers()[static_cast<size_t>(q)].lost(); });
  }
  std::string call() const { return formatted("shrink of '{}' on rank {}", whole_.name(), own_slot(whole_)); }
  std::shared_ptr<Communicator> met(PartExchange &exchange, const std::vector<int> &left, Communicator::Parent parent);
  // The communicator of the ranks `left`, which meet in the exchange.
  std::shared_ptr<Communicator> make(const std::vector<int> &left, bootstrap::Exchange &exchange, Deadline deadline,
                                     Communicator::Parent parent);
  Subject subject() const { return {Subject::Of::Shrink, static_cast<uint64_t>(numbers_)}; }
  Confirmed confirmed(std::shared_ptr<Communicator> mine, bool may_try_again, const Asking &asking, const Status &why);
  std::shared_ptr<Communicator> made(Status &why);  // with those that the agreement has left; null: why not
  Communicator &whole_;
  const Numbers numbers_;
  rank::Rank &local_;
  const std::string name_;
  const Deadline deadline_;
  const AbortWatch &watch_;
  Confirmation &confirmation_;
};

constexpr uint64_t kShrinks = 0x6973'746d'7368'726b;  // what a rank contributes to the first agreement

// Of the time that is left; the rest is for hearing that a rank has not made it, and who that is.
constexpr double kMaking = 0.75;

std::shared_ptr<Communicator> Shrinking::made(Status &why) {
  const std::vector<int> left = local_.agreement().members().list();
  PartExchange exchange(local_, formatted("shrink #{}", local_.agreement().number()), left,
                        PartExchange::WholeFailed::IsKnown, &watch_);
  try {
    return make(left, exchange, Deadline(kMaking * static_cast<double>(deadline_.left_ns()) * 1e-9),
                Communicator::Parent::Ends);
  } catch (const Error &e) { why = e.why(); } catch (const std::exception &e) {
    why = {Code::Resource, e.what()};
    exchange.give_up(why);
  }
  return nullptr;
}

// Where the agreement is late, and this rank does not know for whom, it is mostly for those that have not come to the making.
Confirmed Shrinking::confirmed(std::shared_ptr<Communicator> mine, bool may_try_again, const Asking &asking,
                               const Status &why) {
  try {
    return confirmation_.confirm(whole_, subject(), std::move(mine), may_try_again, asking);
  } catch (const Error &e) {
    if (e.code() != Code::Timeout || !e.ranks().empty() || why.ranks.empty()) throw;
    throw Error(e.code(), formatted("{}; before that: {}", e.text(), why.text), why.ranks);
  }
}

// The ranks agree twice: on who is left, and on whether all of those have the new communicator. Where one has not, because a rank was lost or did
// not answer meanwhile, nobody has it, and they begin again.
//
//   agree: who is out --> make it --> agree: have all made it? --> yes: done
//        ^                                                    \--> no: let go of it, again
//        +--------------------------------------------------------------------+
//
// A rank that stops between the two is named in the error of the others. The next call names it in turn, and goes on with the second agreement
// (Confirmation). Whom this call names counts in both: the first may have been decided before its word.
std::shared_ptr<Communicator> Shrinking::agreed(const std::vector<int> &excluded) {
  const Asking asking{excluded, deadline_, watch_};
  try {
    if (const auto last = confirmation_.resume(whole_, subject(), asking); last && last->made) return last->made;
    for (;;) {
      // Another rank may have heard of the loss in another call that ends with an agreement. That agreement is over then, and both meet in the next.
      while (agree(local_, kShrinks, asking).flags != kShrinks)
        if (deadline_.passed()) fail(Code::Timeout, "other ranks made other calls until the deadline");
      Status why;
      std::shared_ptr<Communicator> mine = made(why);
      // A rank that could not make it for another reason than that ranks did not come would fail again.
      const bool may_try_again = mine || why.code == Code::PeerLost || !why.ranks.empty();
      const Confirmed all = confirmed(std::move(mine), may_try_again, asking, why);
      if (all.made) return all.made;
      if (all.may_try_again && !deadline_.passed()) continue;
      if (!why.ok()) throw Error(std::move(why));
      fail(Code::System, "another rank could not make it");
    }
  } catch (const Error &e) { throw Error(e.code(), formatted("{}: {}", call(), e.text()), e.ranks()); }
}

// The ranks first agree on which attempt this is: one that had given up, and comes again, hears of the attempt with which the others went on. They may
// wait for it there; or they have given that up as well, and say so, and it meets them in the next one.
std::shared_ptr<Communicator> Shrinking::to(const std::vector<int> &left, Communicator::Parent parent) {
  std::string before;  // why an earlier attempt of the others came to nothing
  try {
    for (;;) {
      watch_.look(call());
      const net::Bytes16 attempt = net::random16();
      std::vector<net::Bytes16> attempts(left.size());
      const bool now = local_.exchange().all_gather("shrink", left, std::as_bytes(std::span(attempt)),
                                                    std::as_writable_bytes(std::span(attempts)).data(), deadline_);
      PartExchange exchange(local_, formatted("shrink {}", hex(std::span(attempts[0]).first(4))), left,
                            PartExchange::WholeFailed::IsKnown, &watch_);
      try {
        return met(exchange, left, parent);
      } catch (const Error &e) {
        const bool own = !watch_.status().ok() || (e.code() == Code::Interrupted && !exchange.heard_farewell());
        if (now || own || any_lost(left)) throw;
        before = formatted("; before that: {}", e.text());
      }
    }
  } catch (const Error &e) {
    if (before.empty()) throw;
    throw Error(e.code(), e.text() + before, e.ranks());
  }
}

std::shared_ptr<Communicator> Shrinking::met(PartExchange &exchange, const std::vector<int> &left,
                                             Communicator::Parent parent) {
  struct Over {
    PartExchange &of;
    ~Over() {
      try {
        of.over();
      } catch (const std::exception &) {  // what is left of it is bounded
      }
    }
  } const over{exchange};
  try {
    // A rank that has taken part in the agreement on the attempt and died since would be waited for in vain.
    for (const int q : left)
      if (const auto *process = local_.peers()[static_cast<size_t>(q)].process; process && process->lost.load())
        throw Error(Code::PeerLost,
                    formatted("{}: rank {} is gone: {}", call(), whole_.terms().numbering.slot(q), process->lost_text()),
                    {q});
    auto made = make(left, exchange, deadline_, parent);
    if (parent == Communicator::Parent::Ends) made->local().succession().keep(local_.succession());
    return made;
  } catch (const Error &e) {
    exchange.give_up(e.why());
    throw;
  } catch (const std::exception &e) {
    exchange.give_up({Code::Resource, e.what()});
    throw;
  }
}

std::shared_ptr<Communicator> Shrinking::make(const std::vector<int> &left, bootstrap::Exchange &exchange, Deadline deadline,
                                              Communicator::Parent parent) {
  std::string said;
  for (const int r : left) said += formatted("{}{}", said.empty() ? "ranks " : ",", whole_.terms().numbering.slot(r));
  said += formatted(" of '{}'", whole_.name());
  join::Invitation invitation =
      whole_.invite(exchange, number_in(left), whole_.terms().numbering.left(left, numbers_), deadline, parent);
  invitation.keeps = numbers_ == Numbers::Kept;
  invitation.name = name_;
  invitation.members = said;
  return Communicator::make(invitation, whole_.use_.again());
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int> &excluded, Shrink mode, const std::string &name,
                                                   Numbers numbers, const AbortWatch *watch) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", this->name());
  if (std::find(excluded.begin(), excluded.end(), rank()) != excluded.end())
    fail(Code::Argument, "shrink: rank {} is among those that are excluded", own_slot(*this));
  if (watch)
    local_->core().fail(Code::Aborted, formatted("aborted on rank {}: shrink", own_slot(*this)), process::Tell::Peers);
  else if (mode != Shrink::Keep) this->abort("shrink");
  else if (const Status s = local_->core().failure(); local_->core().failed())
    throw Error(s.code, s.text + "; a communicator that has failed is shrunk with abort", s.ranks);
  const AbortWatch from_now(*local_);
  take_turn(split_mutex_, *this, "shrink", Deadline(timeout()));
  const Lock lock(split_mutex_, kLocked);
  const Deadline deadline(timeout());
  Shrinking shrinking(*this, name, numbers, deadline, watch ? *watch : from_now, confirmation_);
  if (mode == Shrink::Agree) return shrinking.agreed(excluded);
  std::vector<int> left;
  for (int r = 0; r < size(); ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) left.push_back(r);
  return shrinking.to(left, mode == Shrink::Keep ? Communicator::Parent::GoesOn : Communicator::Parent::Ends);
}

}  // namespace isthmus::comm
