#include "rank/rank_agreement.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "net/wait.hpp"
#include "process/control_wire.hpp"

namespace isthmus::rank {
namespace {

// Until this rank, too, has heard that a rank has ended which another one suspects: so much of what comes is read. One that is ending is waited for.
constexpr int64_t kNewsNs = 2'000'000'000;
constexpr int64_t kAskNs = 20'000'000;  // between two questions whether the program wants to stop
constexpr size_t kKept = 4;             // agreements; who is still in an older one has been left out, and was told

std::string list_of(const RankSet &set, const Identity &id) {
  std::string text;
  for (int r = 0; r < id.world; ++r)
    if (set.has(r)) text += formatted("{}{}", text.empty() ? "" : ",", id.number(r));
  return text;
}

RankSet all_ranks(int world) {
  RankSet all(world);
  for (int r = 0; r < world; ++r) all.add(r);
  return all;
}

}  // namespace

RankAgreement::RankAgreement(RankCore &core)
    : core_(core), members_(all_ranks(core.id.world)), cut_(RankSet(core.id.world)) {}

RankSet RankAgreement::members() const {
  const Lock lock(mutex_);
  return members_;
}

uint64_t RankAgreement::number() const {
  const Lock lock(mutex_);
  return number_;
}

std::string RankAgreement::name(uint64_t number) const {
  return formatted("agree #{} of '{}' on rank {}", number, core_.id.name, core_.id.number());
}

// ---- the program ---------------------------------------------------------------------------------------------------------------------

Verdict RankAgreement::agree(uint64_t flags, const std::vector<int> &suspects, bool alone, Deadline deadline,
                             const std::function<Status()> &ended) {
  struct Calling {
    std::atomic<bool> &flag;
    ~Calling() { flag.store(false, std::memory_order_release); }
  };
  Lock lock(mutex_);
  const uint64_t number = number_;
  if (calling_.exchange(true, std::memory_order_acquire))
    fail(Code::Argument, "{}: another thread of this rank is in it", name(number));
  const Calling calling{calling_};
  check_in(number);
  RankSet named(core_.id.world);
  for (const int q : suspects) named.add(q);
  Consensus &consensus = current();
  note_gone();
  consensus.contribute(flags, named, alone);
  // What a call that fails has contributed does not count, as far as no other rank has it.
  struct Withdrawal {
    Consensus &of;
    ~Withdrawal() { of.withdraw(); }
  };
  const Withdrawal withdrawal{consensus};
  int64_t few_since = 0;
  const int64_t begun = now_ns();
  int waits_for = consensus.leader();
  int64_t since = begun;
  for (bool first = true;; first = false) {
    const Outgoing words = take_words(number);
    if (!words.empty()) {
      lock.unlock();
      say(number, words);
      lock.lock();
    }
    if (consensus.verdict()) {
      // The program may leave the communicator as soon as it has the verdict, and the others must hear the verdict first.
      while (saying_ != 0) changed_.wait(lock);
      return finish(number);
    }
    if (waits_for != consensus.leader()) {
      waits_for = consensus.leader();
      since = now_ns();
    }
    few_since = !consensus.too_few() ? 0 : few_since != 0 ? few_since : now_ns();
    const bool waits = few_since != 0 && news_may_come(consensus, !core_.context->control().has_heard(few_since + kNewsNs));
    if (consensus.too_few() && !waits) {
      note_gone();  // what has ended since the last look is no news that may still come
      if (consensus.too_few()) fail_too_few(number, consensus.suspected());
      continue;
    }
    if (deadline.passed()) fail_late(number, consensus, waits, 2 * (now_ns() - since) < now_ns() - begun);
    if (core_.left()) fail(Code::Aborted, "{}: the communicator was destroyed here meanwhile", name(number));
    if (!first) {
      lock.unlock();
      const Status over = ended ? ended() : Status();
      const bool wanted = net::interrupt_wanted();
      lock.lock();
      if (!over.ok()) throw Error(over.code, formatted("{}: {}", name(number), over.text));
      if (wanted) fail(Code::Interrupted, "{}: interrupted", name(number));
    } else {
      core_.context->progress().stand_in();
    }
    if (!consensus.verdict() && (!consensus.too_few() || waits)) {
      const int64_t left = std::min(kAskNs, deadline.ns() - now_ns());
      changed_.wait_for(lock, std::chrono::nanoseconds(std::max<int64_t>(left, 0)));
    }
    note_gone();
  }
}

void RankAgreement::check_in(uint64_t number) const {
  if (members_.has(core_.id.rank)) return;
  fail(Code::Aborted,
       "{}: the other ranks have agreed to go on without this one: it was named by one of them, or was not heard of; this "
       "process may make a new communicator with them",
       name(number));
}

// The program gets the verdict, and the next agreement begins.
Verdict RankAgreement::finish(uint64_t number) {
  const Verdict verdict = *kept_.at(number).verdict();
  ++number_;
  RankSet in(core_.id.world);
  for (int q = 0; q < core_.id.world; ++q)
    if (members_.has(q) && !verdict.out.has(q)) in.add(q);
  members_ = in;
  while (kept_.size() > kKept) kept_.erase(kept_.begin());
  check_in(number);
  if (early_.empty()) return verdict;
  Consensus &next = current();
  for (const Early &e : std::exchange(early_, {})) next.hear(e.from, e.word);
  const Outgoing words = take_words(number_);
  const Unlocked outside(mutex_);
  say(number + 1, words);
  return verdict;
}

void RankAgreement::fail_too_few(uint64_t number, const RankSet &out) const {
  throw Error(Code::PeerLost,
              formatted("{}: ranks {} are out of reach, and those that are left are no more than half: the others may live, "
                        "and go on where this rank does not hear of it; to go on all the same, allow a minority",
                        name(number), list_of(out, core_.id)),
              out.list());
}

// Too few, as far as is known; but their processes may be about to end.
void RankAgreement::fail_ending(uint64_t number, const RankSet &out) const {
  throw Error(
      Code::Timeout,
      formatted("{}: ranks {} are out of reach, and it is not known yet that their processes have ended: call again; "
                "to go on at once, allow a minority",
                name(number), list_of(out, core_.id)),
      out.list());
}

// Those whom it waits for had no fair time to answer: they are not to be taken for lost.
void RankAgreement::fail_early(uint64_t number, const Consensus &consensus) const {
  const int leader = consensus.leader();
  fail(Code::Timeout, "{}: {} has begun to lead the agreement only just before the end of this rank's time: call again",
       name(number), leader < 0 ? "a rank" : core_.id.text(leader));
}

void RankAgreement::fail_late(uint64_t number, const Consensus &consensus, bool ending, bool new_leader) const {
  if (ending) fail_ending(number, consensus.suspected());
  if (new_leader) fail_early(number, consensus);
  const RankSet missing = consensus.unanswered();
  const int leader = consensus.leader();
  const std::vector<int> ranks = missing.list();
  std::string who;
  for (const int q : ranks) who += formatted("{}{}", who.empty() ? "" : ", ", core_.id.text(q));
  const bool many = ranks.size() > 1;
  if (leader == core_.id.rank)
    throw Error(Code::Timeout,
                formatted("{}: {} {} not called it in time, or {} not answer; to go on without {}, name {}", name(number),
                          ranks.empty() ? "a rank" : who, many ? "have" : "has", many ? "do" : "does", many ? "them" : "it",
                          many ? "them" : "it"),
                ranks);
  const std::string leading = leader < 0 ? "a rank" : core_.id.text(leader);
  if (ranks.empty())
    fail(Code::Timeout,
         "{}: {}, which leads the agreement, has called it and waits for a rank that has not; call again: it knows which, "
         "and "
         "may name it",
         name(number), leading);
  throw Error(
      Code::Timeout,
      formatted("{}: {}, which leads the agreement, has not called it in time, or does not answer; to go on without it, "
                "name it",
                name(number), leading),
      ranks);
}

// ---- what comes ----------------------------------------------------------------------------------------------------------------------

void RankAgreement::came(const process::AgreeHead &head, std::span<const std::byte> ranks) {
  const size_t count = RankSet::words_of(core_.id.world);
  if (head.rank >= static_cast<uint32_t>(core_.id.world) || head.words != count || ranks.size() < count * sizeof(uint64_t))
    return;
  std::vector<uint64_t> bits(count);
  std::memcpy(bits.data(), ranks.data(), count * sizeof(uint64_t));
  if (const int spare = core_.id.world & 63) bits.back() &= (uint64_t{1} << spare) - 1;
  Saying word;
  word.kind = static_cast<Saying::Kind>(head.kind);
  word.round = head.round;
  word.ballot = head.ballot;
  word.accepted = head.accepted;
  word.flags = head.flags;
  word.alone = head.alone != 0;
  word.ranks = RankSet(bits);
  const int from = static_cast<int>(head.rank);
  Outgoing words;
  {
    const Lock lock(mutex_);
    if (head.number == number_ + 1) {
      // The newest of each kind: a rank that suspects says all whom it suspects, and of two ballots the newer counts.
      const auto same = std::find_if(early_.begin(), early_.end(),
                                     [&](const Early &e) { return e.from == from && e.word.kind == word.kind; });
      if (same != early_.end()) early_.erase(same);
      early_.push_back({from, std::move(word)});
      return;
    }
    if (head.number > number_) return;
    if (head.number == number_) {
      static_cast<void>(current());
      note_gone();
    }
    const auto at = kept_.find(head.number);
    if (at == kept_.end()) return;
    at->second.hear(from, word);
    words = at->second.take_words();
    ++saying_;
  }
  say(head.number, words);
  said();
}

void RankAgreement::look() {
  std::vector<std::pair<uint64_t, Outgoing>> all;
  {
    const Lock lock(mutex_);
    if (kept_.empty()) return;
    note_gone();
    for (auto &[number, consensus] : kept_) all.emplace_back(number, consensus.take_words());
    ++saying_;
  }
  for (const auto &[number, words] : all) say(number, words);
  said();
}

void RankAgreement::said() {
  {
    const Lock lock(mutex_);
    --saying_;
  }
  changed_.notify_all();
}

void RankAgreement::cut(int rank) {
  {
    const Lock lock(mutex_);
    if (cut_.has(rank)) return;
    cut_.add(rank);
  }
  look();
}

// ---- under the lock ------------------------------------------------------------------------------------------------------------------

Consensus &RankAgreement::current() {
  return kept_.try_emplace(number_, core_.id.rank, core_.id.world, members_).first->second;
}

void RankAgreement::note_gone() {
  for (int q = 0; q < core_.id.world; ++q) {
    const PeerRank &p = core_.peers[static_cast<size_t>(q)];
    const bool left = p.left.load(std::memory_order_acquire), lost = p.lost();
    if (q == core_.id.rank || (!left && !lost && !cut_.has(q))) continue;
    const Gone cut = lost ? Gone::Perhaps : Gone::Cut;
    const Gone how = lost && p.process->surely_ended() ? Gone::Surely : left ? Gone::Left : cut;
    for (auto &[number, consensus] : kept_) consensus.gone(q, how);
  }
}

// Another rank may have heard before this one that a process has ended. Or this one has, and the rank that leads, which has said that they are
// too few, is to hear it.
bool RankAgreement::news_may_come(const Consensus &consensus, bool soon) const {
  const RankSet suspected = consensus.suspected();
  const bool led = consensus.leader() != core_.id.rank;
  for (int q = 0; q < core_.id.world; ++q) {
    const PeerRank &p = core_.peers[static_cast<size_t>(q)];
    if (!suspected.has(q) || !p.process || p.left.load(std::memory_order_acquire)) continue;
    if (soon ? p.process->end_may_come() || (led && p.process->surely_ended()) : p.process->is_ending()) return true;
  }
  return false;
}

RankAgreement::Outgoing RankAgreement::take_words(uint64_t number) {
  const auto at = kept_.find(number);
  return at == kept_.end() ? Outgoing() : at->second.take_words();
}

// ---- what goes -----------------------------------------------------------------------------------------------------------------------

// Not under the lock: a rank of this process hears, and answers, in this call.
void RankAgreement::say(uint64_t number, const Outgoing &words) noexcept {
  for (const auto &[to, word] : words) {
    const PeerRank &p = core_.peers[static_cast<size_t>(to)];
    const std::span<const uint64_t> bits = word.ranks.words();
    const std::vector<uint64_t> none(bits.empty() ? RankSet::words_of(core_.id.world) : 0);
    const std::span<const uint64_t> sent = bits.empty() ? std::span<const uint64_t>(none) : bits;
    const process::AgreeHead head{p.their_index,
                                  core_.id.epoch,
                                  static_cast<uint32_t>(core_.id.rank),
                                  static_cast<uint32_t>(word.kind),
                                  number,
                                  word.round,
                                  word.ballot,
                                  word.accepted,
                                  word.flags,
                                  word.alone,
                                  static_cast<uint32_t>(sent.size())};
    std::vector<std::byte> room(sizeof head + sent.size_bytes());
    core_.context->control().tell(p.process, Control::Agree, process::pack(head, std::as_bytes(sent), room));
  }
}

}  // namespace isthmus::rank
