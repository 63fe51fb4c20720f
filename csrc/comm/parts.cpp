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

join::Invitation Communicator::invite(bootstrap::Exchange &exchange, int rank, int world, Deadline deadline) const {
  const join::Parent parent{key_, topology_.ranks[static_cast<size_t>(this->rank())]};
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

void Communicator::check_ranks(const char *what, const std::vector<int> &ranks) const {
  for (const int r : ranks)
    if (r < 0 || r >= size()) fail(Code::Argument, "{}: there is no rank {} among {}", what, r, size());
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int> &excluded, Shrink mode, const std::string &name) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", this->name());
  check_ranks("shrink", excluded);
  if (std::find(excluded.begin(), excluded.end(), rank()) != excluded.end())
    fail(Code::Argument, "shrink: rank {} is among those that are excluded", rank());
  if (mode != Shrink::Keep) this->abort("shrink");
  else if (const Status s = local_->core().failure(); local_->core().failed())
    throw Error(s.code, s.text + "; a communicator that has failed is shrunk with abort");
  const Lock lock(split_mutex_);
  const Deadline deadline(timeout());
  if (mode == Shrink::Agree) return shrink_agreed(excluded, name, deadline);
  std::vector<int> left;
  for (int r = 0; r < size(); ++r)
    if (std::find(excluded.begin(), excluded.end(), r) == excluded.end()) left.push_back(r);
  return shrink_to(left, name, deadline);
}

// The ranks agree twice: on who is left, and on whether all of those have the new communicator. Where one has not, because a rank was lost
// meanwhile, nobody has it, and they begin again.
//
//   agree: who is out --> make it --> agree: have all made it? --> yes: done
//        ^                                                    \--> no: let go of it, again
//        +--------------------------------------------------------------------+
std::shared_ptr<Communicator> Communicator::shrink_agreed(const std::vector<int> &excluded, const std::string &name,
                                                          Deadline deadline) {
  rank::RankAgreement &agreement = local_->agreement();
  std::vector<int> suspects = excluded;
  for (;;) {
    agreement.agree(1, suspects, false, deadline);
    const rank::RankSet members = agreement.members();
    std::vector<int> left;
    for (int r = 0; r < size(); ++r)
      if (members.has(r)) left.push_back(r);
    std::shared_ptr<Communicator> made;
    Status why;
    try {
      made = shrink_to(left, name, deadline);
    } catch (const Error &e) { why = {e.code(), e.text()}; }
    const rank::Verdict all = agreement.agree(made ? 1 : 0, {}, false, deadline);
    if (all.flags != 0) return made;
    if (made) made->destroy();
    // A rank that could not take part for another reason than a loss would fail again.
    if (agreement.members() == members && !why.ok() && why.code != Code::PeerLost) throw Error(why.code, why.text);
    if (agreement.members() == members && deadline.passed())
      fail(Code::Timeout, "shrink of '{}' on rank {}: no communicator of the ranks that are left came about in time: {}",
           this->name(), rank(), why.ok() ? "another rank could not make it" : why.text);
    suspects.clear();
  }
}

std::shared_ptr<Communicator> Communicator::shrink_to(const std::vector<int> &left, const std::string &name,
                                                      Deadline deadline) {
  const auto mine = std::find(left.begin(), left.end(), rank());
  // The first rank that is left gives the others an id: nothing is collective over a communicator from which ranks are gone.
  std::array<std::byte, 128> id{};
  std::vector<std::byte> ids(left.size() * id.size());
  if (mine == left.begin()) bootstrap::create_unique_id(settings_, id);
  local_->exchange().all_gather("shrink", left, id, ids.data(), deadline);
  // A rank that has taken part in the exchange and died since would be waited for in vain.
  for (const int q : left)
    if (const auto *process = local_->peers()[static_cast<size_t>(q)].process; process && process->lost.load())
      fail(Code::PeerLost, "shrink of '{}' on rank {}: rank {} is gone: {}", this->name(), rank(), q, process->lost_text());
  std::memcpy(id.data(), ids.data(), id.size());
  const int number = static_cast<int>(mine - left.begin()), world = static_cast<int>(left.size());
  std::string said;
  for (const int r : left) said += formatted("{}{}", said.empty() ? "ranks " : ",", r);
  said += formatted(" of '{}'", this->name());
  const auto exchange = bootstrap::id_exchange(id, number, world, settings_, deadline);
  join::Invitation invitation = invite(*exchange, number, world, deadline);
  invitation.name = name.empty() ? this->name() + "/shrink" : name;
  invitation.members = said;
  return make(invitation, use_.again());
}

rank::Verdict Communicator::agree(uint64_t flags, const std::vector<int> &suspects, bool alone, double timeout) {
  if (destroyed_) fail(Code::Argument, "communicator '{}' was destroyed", name());
  check_ranks("agree", suspects);
  if (std::find(suspects.begin(), suspects.end(), rank()) != suspects.end())
    fail(Code::Argument, "agree: rank {} names itself", rank());
  if (timeout < 0) fail(Code::Argument, "agree: timeout {}: must be above 0 seconds, or 0 for the communicator's", timeout);
  return local_->agreement().agree(flags, suspects, alone, Deadline(timeout > 0 ? timeout : this->timeout()));
}

}  // namespace isthmus::comm
