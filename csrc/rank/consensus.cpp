#include "rank/consensus.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace isthmus::rank {

using Kind = Saying::Kind;

namespace {

Saying word_of(Kind kind, uint64_t ballot) {
  Saying word;
  word.kind = kind;
  word.ballot = ballot;
  return word;
}

Saying word_of_verdict(Kind kind, uint64_t ballot, const Verdict &verdict) {
  Saying word = word_of(kind, ballot);
  word.flags = verdict.flags;
  word.ranks = verdict.out;
  return word;
}

// Each rank has ballots of its own: rank + 1, and from there on one in `world`.
int owner_of(uint64_t ballot, int world) { return static_cast<int>((ballot - 1) % static_cast<uint64_t>(world)); }

uint64_t ballot_after(uint64_t ballot, int rank, int world) {
  const uint64_t step = static_cast<uint64_t>(world), first = static_cast<uint64_t>(rank) + 1;
  return ballot < first ? first : first + ((ballot - first) / step + 1) * step;
}

bool add_new(RankSet &set, int rank) {  // false: it was there
  if (set.has(rank)) return false;
  set.add(rank);
  return true;
}

bool all_have_said(const std::map<int, Saying> &said, const RankSet &awaited, int world) {
  for (int q = 0; q < world; ++q)
    if (awaited.has(q) && !said.contains(q)) return false;
  return true;
}

}  // namespace

// ---- whom a rank waits for -----------------------------------------------------------------------------------------------------------

Suspicions::Suspicions(int world, RankSet members)
    : world_(world),
      members_(std::move(members)),
      whom_(static_cast<size_t>(world), RankSet(world)),
      ended_(world),
      left_(world),
      lost_(world) {}

bool Suspicions::add_gone(int by, int rank) { return add_new(whom_[static_cast<size_t>(by)], rank); }

bool Suspicions::add_ended(int rank) { return add_new(ended_, rank); }

bool Suspicions::add_left(int rank) { return add_new(left_, rank); }

// The word of a rank counts where no lower rank suspects that rank.
RankSet Suspicions::suspected() const {
  RankSet out(world_);
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && !out.has(q)) out.add(whom_[static_cast<size_t>(q)]);
  return out;
}

bool Suspicions::alone(int rank) const {
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && q != rank && !lost_.has(q)) return false;
  return true;
}

RankSet Suspicions::live() const {
  const RankSet out = suspected();
  RankSet in(world_);
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && !out.has(q)) in.add(q);
  return in;
}

bool Suspicions::enough(const RankSet &with, bool accepted_before) const {
  if (2 * with.count() > members_.count()) return true;
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && !with.has(q) && !ended_.has(q) && !(accepted_before && left_.has(q))) return false;
  return true;
}

// ---- what comes in -------------------------------------------------------------------------------------------------------------------

Consensus::Consensus(int rank, int world, RankSet members)
    : rank_(rank),
      world_(world),
      suspicions_(world, std::move(members)),
      heard_(world),
      accepted_verdict_{0, RankSet(world)},
      party_{RankSet(world), RankSet(world), false},
      proposed_{0, RankSet(world)} {
  ISTHMUS_ASSERT(suspicions_.member(rank), "who takes part in an agreement is a member");
}

int Consensus::leader() const {
  const RankSet in = suspicions_.live();
  if (leading_ != Leading::No) return rank_;
  if (promised_ != 0 && in.has(owner_of(promised_, world_))) return owner_of(promised_, world_);
  for (int q = 0; q < world_; ++q)
    if (in.has(q)) return q;
  return -1;
}

RankSet Consensus::unanswered() const {
  RankSet out(world_);
  if (verdict_) return out;
  if (leading_ == Leading::No) {
    const int q = leader();
    if (q >= 0 && q != rank_ && !heard_.has(q)) out.add(q);
    return out;
  }
  const RankSet in = suspicions_.live();
  const auto &said = leading_ == Leading::Proposes ? accepts_ : promises_;
  for (int q = 0; q < world_; ++q)
    if (in.has(q) && q != rank_ && !said.contains(q)) out.add(q);
  return out;
}

void Consensus::contribute(uint64_t flags, const RankSet &suspects, bool alone) {
  mine_ = Mine{flags, alone};
  too_few_ = false;
  suspicions_.add(rank_, suspects);
  if (suspicions_.by(rank_).count() > 0 && !verdict_) tell_suspects();
  if (promised_ != 0) promised_to_say_ = promised_;
  if (leading_ != Leading::Proposes) leading_ = Leading::No;  // again, with what the program says now
  step();
}

void Consensus::withdraw() {
  if (verdict_) return;
  mine_.reset();
  heard_ = RankSet(world_);
  if (leading_ == Leading::Collects) leading_ = Leading::No;
}

void Consensus::gone(int rank, Gone how) {
  if (!suspicions_.member(rank) || rank == rank_) return;
  suspicions_.add_lost(rank);
  // Those that are left may be enough now.
  if (how == Gone::Surely && suspicions_.add_ended(rank)) too_few_ = false;
  if (how == Gone::Left && suspicions_.add_left(rank)) too_few_ = false;
  if (!suspicions_.add_gone(rank_, rank)) return step();
  if (verdict_) {
    // It may have told this rank and not the others. What it had to say before it left has come, and then who has led has told all.
    if (rank == told_.by && !(how == Gone::Left && told_.all)) say_all(word_of_verdict(Kind::Decide, 0, *verdict_));
    return;
  }
  if (mine_) tell_suspects();
  step();
}

void Consensus::hear(int from, const Saying &word) {
  if (!suspicions_.member(from) || from == rank_) return;
  if (verdict_) {
    if (word.kind != Kind::Decide && word.kind != Kind::TooFew) say(from, word_of_verdict(Kind::Decide, 0, *verdict_));
    return;
  }
  // Whom this rank does not wait for does not lead. Else two ranks that have lost each other could overtake each other again and again.
  if (word.kind == Kind::Prepare && suspected().has(from)) {
    put_off_ = std::max(put_off_, word.ballot);
    return;
  }
  if (word.kind == Kind::Suspect || word.kind == Kind::Prepare || word.kind == Kind::Propose) heard_.add(from);
  hear_one(from, word);
  if (verdict_) tell_those_out();
  step();
}

void Consensus::hear_one(int from, const Saying &word) {
  switch (word.kind) {
    case Kind::Suspect: suspicions_.add(from, word.ranks); break;
    case Kind::Prepare: on_prepare(from, word); break;
    case Kind::Promise:
      if (word.accepted == 0) suspicions_.add(from, word.ranks);
      if (leading_ != Leading::Collects || word.ballot != ballot_) break;
      if (!promises_.insert_or_assign(from, word).second &&
          from != rank_) {  // it has called again, and learns that this rank has called too
        Saying here = word_of(Kind::Suspect, 0);
        here.ranks = suspicions_.by(rank_);
        say(from, std::move(here));
      }
      break;
    case Kind::Propose: on_propose(from, word); break;
    case Kind::Accept:
      if (leading_ == Leading::Proposes && word.ballot == ballot_) accepts_.insert_or_assign(from, word);
      break;
    case Kind::Decide:
      verdict_ = Verdict{word.flags, word.ranks};
      told_.by = from;
      told_.all = word.ballot != 0;
      break;
    case Kind::Overtaken:
      if (word.ballot <= promised_) break;
      promised_ = word.ballot;
      promised_to_say_ = 0;  // who leads by that ballot has not asked this rank, or its question is on the way
      leading_ = Leading::No;
      break;
    case Kind::TooFew: too_few_ = mine_.has_value(); break;
  }
}

void Consensus::on_prepare(int from, const Saying &word) {
  if (word.ballot < promised_) return answer(from, word_of(Kind::Overtaken, promised_));
  if (word.ballot > promised_ && from != rank_) leading_ = Leading::No;
  // Who has asked before, and has no answer yet, would wait for it.
  if (promised_to_say_ != 0 && promised_to_say_ < word.ballot)
    answer(owner_of(promised_to_say_, world_), word_of(Kind::Overtaken, word.ballot));
  promised_ = promised_to_say_ = word.ballot;
}

void Consensus::on_propose(int from, const Saying &word) {
  if (word.ballot < promised_) return answer(from, word_of(Kind::Overtaken, promised_));
  promised_ = accepted_ = word.ballot;
  promised_to_say_ = 0;
  accepted_verdict_ = {word.flags, word.ranks};
  answer(from, word_of(Kind::Accept, word.ballot));
}

// ---- what follows --------------------------------------------------------------------------------------------------------------------

// Said once the program has contributed, and again where it contributes anew.
void Consensus::promise() {
  const uint64_t ballot = std::exchange(promised_to_say_, 0);
  Saying word = word_of(Kind::Promise, ballot);
  word.alone = mine_->alone;
  word.accepted = accepted_;
  word.flags = accepted_ ? accepted_verdict_.flags : mine_->flags;
  word.ranks = accepted_ ? accepted_verdict_.out : suspicions_.by(rank_);
  answer(owner_of(ballot, world_), std::move(word));
}

// What is known of the suspicions changes. Where a lower rank's word ends that of another one, a rank is waited for again. Its question is answered
// then, and it is asked.
void Consensus::catch_up() {
  if (put_off_ != 0 && !suspected().has(owner_of(put_off_, world_))) {
    const int from = owner_of(put_off_, world_);
    heard_.add(from);
    on_prepare(from, word_of(Kind::Prepare, std::exchange(put_off_, 0)));
  }
  if (leading_ != Leading::Collects) return;
  const RankSet in = suspicions_.live();
  for (int q = 0; q < world_; ++q)
    if (in.has(q) && !party_.asked.has(q)) {
      party_.asked.add(q);
      say(q, word_of(Kind::Prepare, ballot_));
    }
}

void Consensus::step() {
  if (!verdict_) catch_up();
  if (verdict_ || (!mine_ && leading_ != Leading::Proposes)) return;
  if (mine_ && promised_to_say_ != 0) promise();
  const RankSet in = suspicions_.live();
  if (leading_ == Leading::No) {
    int first = 0;
    while (first < world_ && !in.has(first)) ++first;
    const bool other_leads = promised_ != 0 && owner_of(promised_, world_) != rank_ && in.has(owner_of(promised_, world_));
    if (first == rank_ && !other_leads && !too_few_) lead();
    // Whom a lower rank suspects waits for a verdict of the others. From whom it has lost all of them, it never comes.
    else if (suspicions_.alone(rank_)) too_few_ = true;
    return;
  }
  if (leading_ == Leading::Collects && all_have_said(promises_, in, world_)) propose();
  else if (leading_ == Leading::Proposes) {
    RankSet awaited(world_), with(world_);
    for (int q = 0; q < world_; ++q)
      if (party_.promised.has(q) && in.has(q)) awaited.add(q);
    if (!all_have_said(accepts_, awaited, world_)) return;
    for (const auto &[q, word] : accepts_) with.add(q);
    bool alone = true;
    for (const auto &[q, word] : promises_) alone = alone && word.alone;
    if (!alone && !suspicions_.enough(with, party_.accepted_before)) {
      // Whom another rank suspects, and not this one, may still accept. It has been asked.
      for (int q = 0; q < world_; ++q)
        if (party_.promised.has(q) && !with.has(q) && !suspicions_.by(rank_).has(q)) return;
      return give_up();
    }
    verdict_ = proposed_;
    say_all(word_of_verdict(Kind::Decide, ballot_, *verdict_));
  }
}

void Consensus::lead() {
  leading_ = Leading::Collects;
  ballot_ = ballot_after(std::max(promised_, ballot_), rank_, world_);
  promises_.clear();
  accepts_.clear();
  party_.asked = RankSet(world_);
  party_.asked.add(rank_);
  catch_up();
  hear_one(rank_, word_of(Kind::Prepare, ballot_));
  promise();
  step();
}

void Consensus::propose() {
  RankSet with(world_);
  bool alone = true;
  proposed_ = {~uint64_t{0}, RankSet(world_)};
  uint64_t newest = 0;
  for (const auto &[q, word] : promises_) {
    with.add(q);
    alone = alone && word.alone;
    if (word.accepted > newest) {
      newest = word.accepted;
      proposed_ = {word.flags, word.ranks};
    }
  }
  party_.accepted_before = newest != 0;
  if (!alone && !suspicions_.enough(with, party_.accepted_before)) return give_up();
  party_.promised = with;
  if (newest == 0) {
    const RankSet out = suspected();
    for (int q = 0; q < world_; ++q) {
      if (!suspicions_.member(q)) continue;
      if (out.has(q)) proposed_.out.add(q);
      else proposed_.flags &= promises_.at(q).flags;
    }
  }
  leading_ = Leading::Proposes;
  for (const auto &[q, said] : promises_)
    if (q != rank_) say(q, word_of_verdict(Kind::Propose, ballot_, proposed_));
  hear_one(rank_, word_of_verdict(Kind::Propose, ballot_, proposed_));
  step();
}

// The leader may have no way to them, nor to those whom it suspects and the verdict does not leave out: one that an earlier leader has proposed.
void Consensus::tell_those_out() {
  RankSet whom = suspected();
  whom.add(verdict_->out);
  for (int q = 0; q < world_; ++q)
    if (suspicions_.member(q) && q != rank_ && whom.has(q)) say(q, word_of_verdict(Kind::Decide, 0, *verdict_));
}

void Consensus::give_up() {
  leading_ = Leading::No;
  too_few_ = true;
  say_all(word_of(Kind::TooFew, 0));
}

// ---- what goes out -------------------------------------------------------------------------------------------------------------------

void Consensus::tell_suspects() {
  Saying word = word_of(Kind::Suspect, 0);
  word.ranks = suspicions_.by(rank_);
  say_all(word);
}

void Consensus::say(int to, Saying word) { out_.push_back({to, std::move(word)}); }

void Consensus::say_all(const Saying &word) {
  for (int q = 0; q < world_; ++q)
    if (suspicions_.member(q) && q != rank_) say(q, word);
}

std::vector<Consensus::Addressed> Consensus::take_words() { return std::exchange(out_, {}); }

}  // namespace isthmus::rank
