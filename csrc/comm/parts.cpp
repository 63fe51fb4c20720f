// Communicators that are made from a communicator: its parts (split), and what is left of it without some ranks (shrink).
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/clock.hpp"
#include "comm/communicator.hpp"
#include "comm/part_exchange.hpp"

namespace isthmus::comm {
namespace {

struct Choice {
  int32_t color, key;
};

// What every rank has chosen, by rank.
struct Choices {
  std::vector<Choice> all;
  uint64_t number;  // of the operation that has brought the choices, the same on all ranks
};

// Collective over the whole communicator, and the only such step of a split: an all_gather, which has its place in the order of operations.
Choices tell_choices(Communicator &whole, const Choice &mine, double seconds) {
  std::vector<Choice> all(static_cast<size_t>(whole.size()));
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
  if (op->end.result != Code::Ok) throw Error(op->end.result, op->end.text);
  return {std::move(all), op->sequence};
}

// The ranks of a color, ordered by key, then by rank.
std::vector<int> ranks_of(const std::vector<Choice> &choices, int color) {
  std::vector<int> ranks;
  for (size_t r = 0; r < choices.size(); ++r)
    if (choices[r].color == color) ranks.push_back(static_cast<int>(r));
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](int a, int b) { return choices[static_cast<size_t>(a)].key < choices[static_cast<size_t>(b)].key; });
  return ranks;
}

}  // namespace

join::Invitation Communicator::invite(bootstrap::Exchange &exchange, int rank, int world, Deadline deadline,
                                      Parent what) const {
  const join::Parent parent{key_, topology_.ranks[static_cast<size_t>(this->rank())], timeout(),
                            what == Parent::Ends ? local_.get() : nullptr};
  return {{}, {}, rank, world, settings_, context_, parent, exchange, deadline};
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
  const Lock lock(split_mutex_);
  const double seconds = timeout();
  const Deadline deadline(seconds);
  const Choices choices = tell_choices(*this, {color, key}, seconds);
  if (color < 0) return nullptr;
  const std::vector<int> members = ranks_of(choices.all, color);
  const auto mine = std::find(members.begin(), members.end(), rank());
  PartExchange exchange(*local_, formatted("split #{}", choices.number), members);
  join::Invitation invitation =
      invite(exchange, static_cast<int>(mine - members.begin()), static_cast<int>(members.size()), deadline);
  invitation.name = name.empty() ? this->name() + "/split" : name;
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
      ranks.front() < 0 || ranks.back() >= size() || std::find(ranks.begin(), ranks.end(), rank()) == ranks.end())
    fail(Code::Argument, "exchange: the ranks must be ascending, from 0 to {}, and rank {} among them", size() - 1, rank());
  if (timeout < 0)
    fail(Code::Argument, "exchange: timeout {}: must be above 0 seconds, or 0 for the communicator's", timeout);
  local_->exchange().all_gather("exchange", ranks, send, recv, Deadline(timeout > 0 ? timeout : this->timeout()));
}

// What is left of a communicator without some of its ranks.
class Shrinking {
 public:
  // Kept from one shrink to the next:
  //   `unconfirmed`  the last agreement on whether all have what came of a shrink
  //   `kept`         what came of that shrink here, where this rank has not got the verdict
  Shrinking(Communicator &whole, const std::string &name, Deadline deadline, uint64_t &unconfirmed,
            std::shared_ptr<Communicator> &kept)
      : whole_(whole),
        local_(*whole.local_),
        name_(name.empty() ? whole.name() + "/shrink" : name),
        deadline_(deadline),
        unconfirmed_(unconfirmed),
        kept_(kept) {}
  std::shared_ptr<Communicator> to(const std::vector<int> &left,
                                   Communicator::Parent parent);           // the same list on all of them
  std::shared_ptr<Communicator> agreed(const std::vector<int> &excluded);  // lists may be unlike

 private:
  int number_in(const std::vector<int> &left) const {
    return static_cast<int>(std::find(left.begin(), left.end(), whole_.rank()) - left.begin());
  }
  // The communicator of the ranks `left`, which meet in the exchange.
  std::shared_ptr<Communicator> make(const std::vector<int> &left, bootstrap::Exchange &exchange, Deadline deadline,
                                     Communicator::Parent parent);
  std::shared_ptr<Communicator> confirmed(const std::vector<int> &excluded);
  Communicator &whole_;
  rank::Rank &local_;
  const std::string name_;
  const Deadline deadline_;
  uint64_t &unconfirmed_;
  std::shared_ptr<Communicator> &kept_;
};

constexpr uint64_t kMade = 1, kMayTryAgain = 2;  // what a rank contributes to the second agreement
// Of the time that is left; the rest is for hearing that a rank has not made it, and who that is.
constexpr double kMaking = 0.75;

// An earlier shrink may have failed here in its second agreement, for a rank that did not answer. The others may still be in that agreement, or
// be past it. So it comes to its end first, without the ranks that are named now, and what this rank has made meanwhile counts. Null: begin again.
std::shared_ptr<Communicator> Shrinking::confirmed(const std::vector<int> &excluded) {
  rank::RankAgreement &agreement = local_.agreement();
  const std::shared_ptr<Communicator> made = kept_;
  if (unconfirmed_ != agreement.number()) {
    kept_.reset();
    if (made) end_unconfirmed(*made, whole_);
    return nullptr;
  }
  const rank::Verdict verdict = agreement.agree(made ? kMade | kMayTryAgain : kMayTryAgain, excluded, false, deadline_);
  kept_.reset();
  if (verdict.flags & kMade && verdict.out.count() == 0) {
    if (made) {
      made->local().succession().keep(local_.succession());
      return made;
    }
    fail(Code::Aborted,
         "shrink of '{}' on rank {}: the other ranks have the communicator of the call before, and this rank has let go "
         "of it",
         whole_.name(), whole_.rank());
  }
  if (made) made->destroy();
  return nullptr;
}

// The ranks agree twice: on who is left, and on whether all of those have the new communicator. Where one has not, because a rank was lost
// meanwhile, nobody has it, and they begin again.
//
//   agree: who is out --> make it --> agree: have all made it? --> yes: done
//        ^                                                    \--> no: let go of it, again
//        +--------------------------------------------------------------------+
//
// A rank that stops between the two is named in the error of the others. The next call names it in turn, and goes on with the second agreement.
std::shared_ptr<Communicator> Shrinking::agreed(const std::vector<int> &excluded) {
  rank::RankAgreement &agreement = local_.agreement();
  if (auto made = confirmed(excluded)) return made;
  for (std::vector<int> suspects = excluded;; suspects.clear()) {
    agreement.agree(0, suspects, false, deadline_);
    const std::vector<int> left = agreement.members().list();
    PartExchange exchange(local_, formatted("shrink #{}", agreement.number()), left, PartExchange::WholeFailed::IsKnown);
    std::shared_ptr<Communicator> made;
    Status why;
    try {
      made = make(left, exchange, Deadline(kMaking * static_cast<double>(deadline_.left_ns()) * 1e-9),
                  Communicator::Parent::Ends);
    } catch (const Error &e) { why = {e.code(), e.text()}; } catch (const std::exception &e) {
      why = {Code::Resource, e.what()};
      exchange.give_up(why);
    }
    // A rank that could not make it for another reason than a loss would fail again.
    unconfirmed_ = agreement.number();
    kept_ = made;
    const uint64_t mine = made ? kMade | kMayTryAgain : why.code == Code::PeerLost ? kMayTryAgain : 0;
    const rank::Verdict all = agreement.agree(mine, {}, false, deadline_);
    kept_.reset();
    if (all.flags & kMade && all.out.count() == 0) {
      made->local().succession().keep(local_.succession());
      return made;
    }
    if (made) made->destroy();
    if (!(all.flags & kMayTryAgain) || deadline_.passed()) {
      if (!why.ok()) throw Error(why.code, why.text);
      fail(Code::System, "shrink of '{}' on rank {}: another rank could not make it", whole_.name(), whole_.rank());
    }
  }
}

std::shared_ptr<Communicator> Shrinking::to(const std::vector<int> &left, Communicator::Parent parent) {
  // The first rank that is left gives the others an id: nothing is collective over a communicator from which ranks are gone.
  std::array<std::byte, 128> id{};
  std::vector<std::byte> ids(left.size() * id.size());
  if (whole_.rank() == left.front()) bootstrap::create_unique_id(whole_.settings(), id);
  local_.exchange().all_gather("shrink", left, id, ids.data(), deadline_);
  // A rank that has taken part in the exchange and died since would be waited for in vain.
  for (const int q : left)
    if (const auto *process = local_.peers()[static_cast<size_t>(q)].process; process && process->lost.load())
      fail(Code::PeerLost, "shrink of '{}' on rank {}: rank {} is gone: {}", whole_.name(), whole_.rank(), q,
           process->lost_text());
  std::memcpy(id.data(), ids.data(), id.size());
  const auto exchange =
      bootstrap::id_exchange(id, number_in(left), static_cast<int>(left.size()), whole_.settings(), deadline_);
  auto made = make(left, *exchange, deadline_, parent);
  if (parent == Communicator::Parent::Ends) made->local().succession().keep(local_.succession());
  return made;
}

std::shared_ptr<Communicator> Shrinking::make(const std::vector<int> &left, bootstrap::Exchange &exchange, Deadline deadline,
                                              Communicator::Parent parent) {
  std::string said;
  for (const int r : left) said += formatted("{}{}", said.empty() ? "ranks " : ",", r);
  said += formatted(" of '{}'", whole_.name());
  join::Invitation invitation = whole_.invite(exchange, number_in(left), static_cast<int>(left.size()), deadline, parent);
  invitation.name = name_;
  invitation.members = said;
  return Communicator::make(invitation, whole_.use_.again());
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int> &excluded, Shrink mode, const std::string &name) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", this->name());
  for (const int r : excluded)
    if (r < 0 || r >= size()) fail(Code::Argument, "shrink: there is no rank {} among {}", r, size());
  if (std::find(excluded.begin(), excluded.end(), rank()) != excluded.end())
    fail(Code::Argument, "shrink: rank {} is among those that are excluded", rank());
  if (mode != Shrink::Keep) this->abort("shrink");
  else if (const Status s = local_->core().failure(); local_->core().failed())
    throw Error(s.code, s.text + "; a communicator that has failed is shrunk with abort");
  const Lock lock(split_mutex_);
  const Deadline deadline(timeout());
  if (mode == Shrink::Agree) return Shrinking(*this, name, deadline, unconfirmed_, unconfirmed_part_).agreed(excluded);
  std::vector<int> left;
  for (int r = 0; r < size(); ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) left.push_back(r);
  return Shrinking(*this, name, deadline, unconfirmed_, unconfirmed_part_)
      .to(left, mode == Shrink::Keep ? Communicator::Parent::GoesOn : Communicator::Parent::Ends);
}

}  // namespace isthmus::comm
