#include "rank/wait_chain.hpp"

#include <algorithm>
#include <set>

namespace isthmus::rank {
namespace {

using process::MessageSide;
using process::RankQuestion;

constexpr double kSearchSeconds = 6;       // of one search for a culprit
constexpr uint64_t kNoCollective = ~0ull;  // in a question

Deadline patience_until(Deadline end) { return Deadline::at_ns(std::min(end.ns(), Deadline(kBlamePatience).ns())); }

const char *other_side(MessageSide side) { return side == MessageSide::Send ? "receive" : "send"; }

}  // namespace

process::ControlRoom::Inquiry ask(const RankCore &core, int q, const RankQuestion &question) {
  const PeerRank &p = core.peers[static_cast<size_t>(q)];
  return core.context->control().ask(p.process, p.their_index, core.id.epoch, question);
}

WaitChain::WaitChain(RankCore &core, const std::vector<int> &served_in, const Operation &op, Culprit &found)
    : core_(core),
      served_in_(served_in),
      op_(op),
      found_(found),
      end_(kSearchSeconds),
      collective_(op.is_p2p() ? 0 : op.sequence) {}

std::string WaitChain::follow(int first) noexcept {
  Hop own{core_.id.rank, first, Kind::Collective, MessageSide::None, 0, op_.sequence, op_.run.at.turn()};
  if (op_.is_p2p()) {
    own.kind = Kind::Message;
    own.side = op_.call.collective == Collective::Send ? MessageSide::Send : MessageSide::Recv;
    own.tag = op_.call.tag;
  }
  hops_ = {own};
  for (;;)
    if (auto said = look_at(hops_.back().next)) return std::move(*said);
}

std::optional<std::string> WaitChain::look_at(int q) noexcept {
  const Hop &from = hops_.back();
  const PeerRank &p = core_.peers[static_cast<size_t>(q)];
  Seen seen{q, core_.id.text(q), {}, {}, {}};
  const RankQuestion question{.sequence = collective_ ? collective_ : kNoCollective,
                              .rank = from.rank,
                              .tag = from.tag,
                              .side = from.of_message() ? from.side : MessageSide::None};
  if (q == core_.id.rank) {  // of messages alone
    seen.said = core_.port.answer(question);
    return look_at_message(seen);
  }
  if (p.left.load(std::memory_order_acquire)) {
    found_ = {Code::PeerLost, {q}};
    return formatted("{} {}", seen.who, engine::kHasLeft);
  }
  const int64_t heard = p.process ? p.process->last_heard_ns.load(std::memory_order_relaxed) : now_ns();
  const double silent = static_cast<double>(now_ns() - heard) * 1e-9;
  if (!ask(core_, q, question).answered(kAnswerMs, patience_until(end_), seen.said)) {
    found_.ranks = {q};
    return formatted("{} does not answer; last heard {:.1f} s ago: its process is stopped, or the network to it is down{}",
                     seen.who, silent, chain());
  }
  if (seen.said.busy[0]) seen.busy = formatted("; it is in {}", seen.said.busy);
  seen.heard = formatted("; last heard {:.1f} s ago{}", silent, seen.busy);
  return from.of_message() ? look_at_message(seen) : look_at_collective(seen);
}

// ---- who has a message with the rank -------------------------------------------------------------------------------------------------

std::optional<std::string> WaitChain::look_at_message(const Seen &q) noexcept {
  const Answer &a = q.said;
  const Hop from = hops_.back();
  const bool called = collective_ != 0 && (a.entered >= collective_ || a.known);
  if (called) return stands_in_message(&q);
  if (a.matched && from.rank != core_.id.rank) return stands_in_message(&q);
  if (a.matched)  // it has come, and is slow
    return formatted("both ranks have called it, and not all of it has come: {}{}{}", way_text(from.rank, q.rank), q.busy,
                     chain());
  if (has_seen(q.rank)) return ends_where_it_began(q);
  if (a.entered > a.done) {
    if (!has_next(q)) return no_other_side(q);
    if (collective_ == 0) collective_ = a.entered;
    hops_.push_back({q.rank, a.waiting_on, Kind::Collective, MessageSide::None, 0, a.entered, a.turn});
    return std::nullopt;
  }
  if (a.waiting_on < 0 || a.waiting_on >= core_.id.world) return no_other_side(q);
  hops_.push_back({q.rank, a.waiting_on, a.in_message ? Kind::Message : Kind::Pending, a.side, a.tag});
  return std::nullopt;
}

// The chain comes back to a rank that it has. A ring is one where each waits in a message. One that sends and one that receives are none: their tags
// differ.
std::string WaitChain::ends_where_it_began(const Seen &q) noexcept {
  const auto first = std::find_if(hops_.begin(), hops_.end(), [&](const Hop &h) { return h.rank == q.rank; });
  const bool ring = std::all_of(first, hops_.end(), [](const Hop &h) { return h.kind == Kind::Message; }) &&
                    (hops_.end() - first != 2 || first->side == hops_.back().side);
  if (!ring || (q.rank == core_.id.rank && !q.said.in_message)) return stands_in_message(&q);
  std::string ranks, hops;
  std::vector<int> all;
  for (auto h = first; h != hops_.end(); ++h) {
    all.push_back(core_.id.number(h->rank));
    hops += formatted("{}{} in {}", hops.empty() ? "" : ", ", number(h->rank), message_text(*h, false));
  }
  std::sort(all.begin(), all.end());
  for (const int rank : all) ranks += formatted("{}{}", ranks.empty() ? "" : ", ", rank);
  const size_t length = all.size();
  found_.ranks = {};
  return formatted("ranks {} wait for one another in a ring ({}){}", ranks, hops, chain(length));
}

// Of the last rank of the chain. `next`: for whom it waits; null: for any rank.
std::string WaitChain::stands_in_message(const Seen *next) noexcept {
  const Hop &hop = hops_.back(), &before = hops_[hops_.size() - 2];
  const std::string peer = next ? number(next->rank) : std::string("no rank");
  const std::string lacks =
      next && next->said.matched      ? formatted("of which not all has come: {}", way_text(hop.rank, next->rank))
      : hop.side == MessageSide::Send ? formatted("which {} has{} received", peer, next ? " not" : "")
                                      : formatted("which has{} come from {}", next ? " not" : "", peer);
  if (!next || !next->said.matched) found_.ranks = {hop.rank};
  return formatted(
      "{} has {}: it {} {}, {}{}", core_.id.text(hop.rank),
      before.of_message() ? formatted("made no {} that matches", other_side(before.side)) : formatted("not called {}", it()),
      hop.kind == Kind::Message ? "is in" : "has a", message_text(hop, true), lacks, chain(1));
}

// The rank has not made what the last rank of the chain waits for.
std::string WaitChain::no_other_side(const Seen &q) noexcept {
  const Answer &a = q.said;
  std::string in;
  if (a.entered > a.done) {
    in = formatted(": it is in #{} {}{}", a.entered, describe(core_.id, a.what, a.bytes),
                   a.waiting_on >= 0 ? ", waiting for " + number(a.waiting_on) : "");
  } else if (a.in_message) {
    in = formatted(": it is in {}, which has come from no rank",
                   message_text({q.rank, -1, Kind::Message, a.side, a.tag}, true));
  }
  found_.ranks = {q.rank};
  return formatted("{} has made no {} that matches{}{}{}", q.who, other_side(hops_.back().side), in, q.heard, chain());
}

// ---- who waits for the rank in a collective ------------------------------------------------------------------------------------------

std::optional<std::string> WaitChain::look_at_collective(const Seen &q) noexcept {
  const Answer &a = q.said;
  const bool behind = a.entered < collective_;
  if (behind && a.entered > a.done && has_next(q)) {  // held up before ours
    hops_.push_back({q.rank, a.waiting_on, Kind::Collective, MessageSide::None, 0, a.entered, a.turn});
    return std::nullopt;
  }
  if (behind && a.entered <= a.done && a.in_message) {
    hops_.push_back({q.rank, a.waiting_on, Kind::Message, a.side, a.tag});
    if (a.waiting_on < 0 || a.waiting_on >= core_.id.world) return stands_in_message(nullptr);
    return std::nullopt;
  }
  const bool called = !behind || a.known != 0;  // its host list may have gone ahead of its turn
  if (!called) return not_called(q);
  if (a.known && !op_.is_p2p() && a.digest != op_.digest && a.digest != 0) {
    found_.code = Code::Mismatch;
    return formatted("{} called {} in its place{}", q.who, describe(core_.id, a.what, a.bytes), chain());
  }
  if (behind && a.waiting_on < 0) {
    found_.ranks = {q.rank};
    return formatted("{} is still in the operation before {}, #{}, and waits for no rank{}{}", q.who, it(), a.entered,
                     q.heard, chain());
  }
  if (a.done >= collective_)
    return formatted("{} has finished {}, but what it sent has not arrived; check the network{}", q.who, it(), chain());
  if (a.waiting_on < 0 || a.waiting_on >= core_.id.world) {
    int next = -1;
    std::string said = waits_for_nobody(q, next);
    if (next < 0) return said;
    hops_.push_back({q.rank, next, Kind::Island, MessageSide::None, 0, a.entered, a.turn});
    return std::nullopt;
  }
  hops_.push_back({q.rank, a.waiting_on, Kind::Collective, MessageSide::None, 0, a.entered, a.turn});
  const auto first = std::find_if(hops_.begin(), hops_.end(), [&](const Hop &h) { return h.rank == a.waiting_on; });
  if (first == hops_.end()) return std::nullopt;
  const auto message = std::find_if(first, hops_.end(), [](const Hop &h) { return h.of_message(); });
  return message == hops_.end() ? mutual(q) : crossed(*message);
}

std::string WaitChain::not_called(const Seen &q) noexcept {
  const Answer &a = q.said;
  found_.ranks = {q.rank};
  return formatted("{} has not called {}: {}{}{}", q.who, it(),
                   a.entered == 0 ? std::string("it has called nothing on this communicator")
                                  : formatted("its last call was #{} {}", a.entered, describe(core_.id, a.what, a.bytes)),
                   q.heard, chain());
}

// Ranks wait for one another, one of them in a message, and those behind it in a collective to which that one does not come.
std::string WaitChain::crossed(const Hop &message) const {
  return formatted("{} has not called #{}: it is in {}, and {} does not come to that before #{} is over{}",
                   core_.id.text(message.rank), collective_, message_text(message, true), number(message.next), collective_,
                   chain());
}

// Ranks wait for one another in one collective. Of the ways between them the one to the rank that has come least far is the slow one.
std::string WaitChain::mutual(const Seen &q) noexcept {
  const Hop last = hops_.back();
  const auto first = std::find_if(hops_.begin(), hops_.end(), [&](const Hop &h) { return h.rank == last.next; });
  std::set<std::pair<int, int>> ways;
  std::pair<uint64_t, uint32_t> least{UINT64_MAX, UINT32_MAX};
  for (auto h = first; h != hops_.end(); ++h) {
    const std::pair<uint64_t, uint32_t> at{h->sequence, h->turn};
    if (h->kind != Kind::Collective || at > least) continue;
    if (topology::share_memory(core_.id.topology, h->rank, h->next)) continue;
    if (at < least) ways.clear();
    least = at;
    ways.insert(std::minmax(h->rank, h->next));
  }
  std::string slow;
  for (const auto &[a, b] : ways) slow += (slow.empty() ? ": " : ", or ") + way_text(a, b);
  return formatted("{} waits for {} in turn{}{}{}{}", q.who, number(last.next),
                   slow.empty() ? ": it is slow, or data between them does not move" : slow,
                   many_communicators()
                       ? "; if several communicators are in flight, check that all ranks use them in the same order"
                       : "",
                   q.busy, chain(1));
}

// Rank `q` is not asleep. Rank `q` is slow, or held up this moment, or in a call of its island's library. The library waits for another rank of the
// island.
//
// Two other ranks are likelier culprits: a rank that does not answer at all, and a rank of that island that has not come. In the second case the
// search goes on with `next`, the rank that has not come.
std::string WaitChain::waits_for_nobody(const Seen &q, int &next) noexcept {
  const int island = served_in_[static_cast<size_t>(q.rank)];
  std::string others;  // in calls of their own
  std::vector<std::pair<int, process::ControlRoom::Inquiry>> asked;
  for (int r = 0; r < core_.id.world; ++r)
    if (r != q.rank && !has_seen(r)) asked.emplace_back(r, ask(core_, r, {.sequence = collective_}));
  const Deadline patience = patience_until(end_);
  for (auto &[r, question] : asked) {
    Answer other;
    if (!question.answered(kAnswerMs, patience, other)) {
      found_.ranks = {r};
      return formatted("{} does not answer: its process is stopped, or the network to it is down{}", core_.id.text(r),
                       chain());
    }
    const bool beside = island >= 0 && served_in_[static_cast<size_t>(r)] == island;
    if (beside && next < 0 && other.entered < collective_) next = r;
    if (beside && other.busy[0]) others += formatted("; {} of the same island is in {}", core_.id.text(r), other.busy);
  }
  if (next >= 0) return {};
  return formatted("{} is still inside {} and waits for nobody{}{}{}{}", q.who, it(),
                   others.empty() ? ": it is slow, or its transfer is" : " that it knows of", q.busy, others, chain());
}

// ---- words ---------------------------------------------------------------------------------------------------------------------------

bool WaitChain::has_seen(int rank) const noexcept {
  return std::any_of(hops_.begin(), hops_.end(), [&](const Hop &h) { return h.rank == rank; });
}

bool WaitChain::has_next(const Seen &q) const noexcept {
  const int next = q.said.waiting_on;
  return next >= 0 && next < core_.id.world && next != q.rank && !has_seen(next);
}

std::string WaitChain::it() const { return op_.is_p2p() ? formatted("#{}", collective_) : std::string("it"); }

std::string WaitChain::chain(size_t without_last) const {
  std::string all;
  for (size_t i = 1; i + without_last < hops_.size(); ++i) all += formatted(" ({})", text(hops_[i]));
  return all;
}

std::string WaitChain::text(const Hop &hop) const {
  const std::string who = number(hop.rank);
  if (hop.of_message())
    return formatted("{} {} {}", who, hop.kind == Kind::Message ? "is in" : "has a", message_text(hop, false));
  const std::string of = hop.sequence == op_.sequence && !op_.is_p2p() ? std::string() : formatted(" in #{}", hop.sequence);
  return formatted("{} waits for {}{}{}", who, hop.kind == Kind::Island ? "its island's " : "", number(hop.next), of);
}

// A message without a tag is named without one.
std::string WaitChain::message_text(const Hop &hop, bool in_brackets) const {
  return formatted("{} {}{}", hop.side == MessageSide::Send ? "send to" : "recv from",
                   hop.next < 0 ? std::string("any rank") : number(hop.next),
                   hop.tag == 0  ? std::string()
                   : in_brackets ? formatted(" (tag {})", hop.tag)
                                 : formatted(" with tag {}", hop.tag));
}

std::string WaitChain::way_text(int a, int b) const {
  if (a > b) std::swap(a, b);
  const auto at = [&](int of) {
    const topology::RankInfo &r = core_.id.topology.ranks[static_cast<size_t>(of)];
    return formatted("{} ({}{})", number(of), r.hostname, r.address.empty() ? "" : ", " + r.address);
  };
  const bool device = !core_.id.on_host(a) || !core_.id.on_host(b);
  return formatted("the path between {} and {}{} is slow or blocked", at(a), at(b),
                   device ? ", or a device of theirs," : "");
}

bool WaitChain::many_communicators() const {
  std::set<uint32_t> epochs;
  for (const auto &rank : core_.context->ranks().all()) epochs.insert(rank->epoch());
  return epochs.size() > 1;
}

}  // namespace isthmus::rank
