#include "rank/consensus.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace isthmus::rank {

using Kind = Saying::Kind;

namespace {

// Each rank has ballots of its own: rank + 1, and from there on one in `world`.
int owner_of(uint64_t ballot, int world) { return static_cast<int>((ballot - 1) % static_cast<uint64_t>(world)); }

uint64_t ballot_after(uint64_t ballot, int rank, int world) {
  const uint64_t step = static_cast<uint64_t>(world), first = static_cast<uint64_t>(rank) + 1;
  return ballot < first ? first : first + ((ballot - first) / step + 1) * step;
}

bool all_have_said(const std::map<int, Saying> &said, const RankSet &awaited, int world) {
  for (int q = 0; q < world; ++q)
    if (awaited.has(q) && !said.contains(q)) return false;
  return true;
}

}  // namespace

// ---- what comes in -------------------------------------------------------------------------------------------------------------------

Consensus::Consensus(int rank, int world, RankSet members)
    : rank_(rank),
      world_(world),
      suspicions_(world, members),
      queue_(rank, world, std::move(members)),
      talk_(rank, world, suspicions_, queue_),
      rounds_(rank),
      heard_(world),
      accepted_verdict_{0, RankSet(world)},
      party_{RankSet(world), {}, {}, RankSet(world), {0, RankSet(world)}, false} {
  ISTHMUS_ASSERT(suspicions_.member(rank), "who takes part in an agreement is a member");
}

int Consensus::leader() const {
  if (leading_ != Leading::No) return rank_;
  return waits_for_promised() ? owner_of(promised_, world_) : suspicions_.first_live();
}

// For the one that leads by the ballot that this rank has promised.
bool Consensus::waits_for_promised() const {
  if (promised_ == 0) return false;
  const int owner = owner_of(promised_, world_);
  return !rounds_.has_given_up(owner) && !suspected().has(owner);
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
  const auto &said = leading_ == Leading::Proposes ? party_.accepts : party_.promises;
  for (int q = 0; q < world_; ++q)
    if (in.has(q) && q != rank_ && !said.contains(q)) out.add(q);
  return out;
}

void Consensus::contribute(uint64_t flags, const RankSet &suspects, bool alone) {
  mine_ = Mine{flags, alone};
  rounds_.begin_call();
  too_few_ = false;
  suspicions_.add(rank_, suspects);
  talk_.begin_anew();
  if (!verdict_) talk_.answer_all();
  if (promised_ != 0) promised_to_say_ = promised_;
  if (leading_ != Leading::Proposes) leading_ = Leading::No;  // again, with what the program says now
  step();
}

void Consensus::withdraw() {
  if (verdict_) return;
  mine_.reset();
  rounds_.end_call(too_few_);
  heard_ = RankSet(world_);
  if (leading_ == Leading::Collects) leading_ = Leading::No;
}

void Consensus::gone(int rank, Gone how) {
  if (!suspicions_.member(rank) || rank == rank_) return;
  if (how != Gone::Cut) suspicions_.add_lost(rank);
  // Those that are left may be enough now.
  if (how == Gone::Surely && suspicions_.add_ended(rank)) rounds_.try_again();
  if (how == Gone::Left && suspicions_.add_left(rank)) rounds_.try_again();
  if (!suspicions_.add_gone(rank_, rank)) return step();
  if (verdict_) {
    // It may have told this rank and not the others. What it had to say before it left has come, and then who has led has told all.
    if (rank == told_.by && !(how == Gone::Left && told_.all)) queue_.say_all(word_of_verdict(Kind::Decide, 0, *verdict_));
    return;
  }
  step();
}

std::vector<Addressed> Consensus::take_words() {
  std::vector<Addressed> words = queue_.take();
  for (auto &[to, word] : words) word.round = rounds_.now();
  return words;
}

void Consensus::hear(int from, const Saying &word) {
  if (!suspicions_.member(from) || from == rank_) return;
  if (verdict_) {
    if (word.kind != Kind::Decide && word.kind != Kind::TooFew)
      queue_.say(from, word_of_verdict(Kind::Decide, 0, *verdict_));
    return;
  }
  if (word.kind == Kind::Prepare) suspicions_.add(from, word.ranks);
  if (word.kind == Kind::Prepare || word.kind == Kind::Propose || word.kind == Kind::Promise)
    rounds_.goes_on(from, word.round);
  // Whom this rank does not wait for does not lead. Else two ranks that have lost each other could overtake each other again and again.
  if (word.kind == Kind::Prepare && suspected().has(from)) {
    put_off_[from] = word.ballot;
    if (suspicions_.by(rank_).has(from)) talk_.say(from);
    if (too_few_ || rounds_.has_failed_in(word.round)) say_too_few(from);
    return step();
  }
  if (word.kind == Kind::Suspect || word.kind == Kind::Prepare || word.kind == Kind::Propose) heard_.add(from);
  hear_one(from, word);
  if (verdict_) tell_those_out();
  step();
}

void Consensus::hear_one(int from, const Saying &word) {
  switch (word.kind) {
    case Kind::Suspect:
      if (suspicions_.add(from, word.ranks) && mine_) talk_.answer(from);
      if (rounds_.has_given_up(rank_) || rounds_.has_failed_in(word.round) || too_few_for(from)) say_too_few(from);
      break;
    case Kind::Prepare:
      on_prepare(from, word);
      if (rounds_.has_failed_in(word.round)) say_too_few(from);
      break;
    case Kind::Promise:
      if (word.accepted == 0 && suspicions_.add(from, word.ranks) && mine_ &&
          (leading_ != Leading::Collects || word.ballot != ballot_))
        talk_.answer(from);
      if (rounds_.has_given_up(rank_) && word.ballot == ballot_) say_too_few(from);  // it had not called
      if (leading_ != Leading::Collects || word.ballot != ballot_) break;
      if (const bool again = !party_.promises.insert_or_assign(from, word).second; again && from != rank_)
        talk_.say(from);  // it has called again, and learns that this rank has called too
      break;
    case Kind::Propose: on_propose(from, word); break;
    case Kind::Accept:
      if (leading_ == Leading::Proposes && word.ballot == ballot_) party_.accepts.insert_or_assign(from, word);
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
    case Kind::TooFew: rounds_.gave_up(from, word.round); break;
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

// Whether this rank's call is over and that rank, which does not hear the leader, perhaps waits for it.
bool Consensus::too_few_for(int rank) const { return too_few_ && suspicions_.by(rank).has(leader()); }

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
  const RankSet out = suspected();
  for (auto at = put_off_.begin(); at != put_off_.end();) {
    const auto [from, ballot] = *at;
    if (out.has(from)) {
      ++at;
      continue;
    }
    at = put_off_.erase(at);
    heard_.add(from);
    on_prepare(from, word_of(Kind::Prepare, ballot));
  }
  if (leading_ != Leading::Collects) return;
  const RankSet in = suspicions_.live();
  for (int q = 0; q < world_; ++q)
    if (in.has(q) && !party_.asked.has(q)) {
      party_.asked.add(q);
      queue_.say(q, talk_.word(Kind::Prepare, ballot_));
    }
}

void Consensus::step() {
  if (!verdict_) catch_up();
  if (verdict_ || (!mine_ && leading_ != Leading::Proposes)) return;
  const RankSet in = suspicions_.live();
  if (rounds_.has_given_up(rank_) && !rounds_.tried_with(in)) rounds_.try_again();
  if (leading_ == Leading::Collects && !in.has(rank_))
    leading_ = Leading::No;  // another one leads, for which this one does not matter
  // Those that have promised this rank's ballot wait for it, though a rank for which it does not wait has overtaken it.
  const int first = suspicions_.first_live();
  const int leads = waits_for_promised() ? owner_of(promised_, world_) : ballot_ != 0 && in.has(rank_) ? rank_ : first;
  const bool leads_now = leads == rank_ && !rounds_.has_given_up(rank_);
  // Whom a lower rank suspects waits for a verdict of the others. From whom it has lost all of them, it never comes.
  const bool were_too_few = std::exchange(
      too_few_, leading_ == Leading::No && !leads_now && (suspicions_.alone(rank_) || rounds_.has_given_up(leads)));
  for (int q = 0; too_few_ && !were_too_few && q < world_; ++q)
    if (put_off_.contains(q) || (q != rank_ && suspicions_.member(q) && too_few_for(q))) say_too_few(q);
  if (mine_ && promised_to_say_ != 0 && !too_few_) promise();
  if (leading_ == Leading::No) {
    if (leads_now) return lead();
    return talk_.tell(heard_);
  }
  if (mine_) talk_.tell(heard_);
  if (leading_ == Leading::Collects && all_have_said(party_.promises, in, world_)) propose();
  else if (leading_ == Leading::Collects && rounds_.has_given_up(unanswered())) give_up();
  else if (leading_ == Leading::Proposes) {
    RankSet awaited(world_), with(world_);
    for (int q = 0; q < world_; ++q)
      if (party_.promised.has(q) && in.has(q)) awaited.add(q);
    if (!all_have_said(party_.accepts, awaited, world_)) return;
    for (const auto &[q, word] : party_.accepts) with.add(q);
    bool alone = true;
    for (const auto &[q, word] : party_.promises) alone = alone && word.alone;
    if (!alone && !suspicions_.enough(with, party_.accepted_before)) {
      // A rank that is waited for again since may be enough, and has not been asked.
      for (int q = 0; mine_ && q < world_; ++q)
        if (in.has(q) && !party_.promised.has(q) && in.has(rank_)) return lead();
      // Whom another rank suspects, and not this one, may still accept. It has been asked.
      for (int q = 0; q < world_; ++q)
        if (party_.promised.has(q) && !with.has(q) && !suspicions_.by(rank_).has(q)) return;
      return give_up();
    }
    verdict_ = party_.proposed;
    queue_.say_all(word_of_verdict(Kind::Decide, ballot_, *verdict_));
  }
}

void Consensus::lead() {
  leading_ = Leading::Collects;
  rounds_.ask_all();
  ballot_ = ballot_after(std::max(promised_, ballot_), rank_, world_);
  party_.promises.clear();
  party_.accepts.clear();
  party_.asked = RankSet(world_);
  party_.asked.add(rank_);
  catch_up();
  talk_.tell_all_but(party_.asked);
  hear_one(rank_, word_of(Kind::Prepare, ballot_));
  if (promised_to_say_ != 0) promise();
  step();
}

void Consensus::propose() {
  RankSet with(world_);
  bool alone = true;
  party_.proposed = {~uint64_t{0}, RankSet(world_)};
  uint64_t newest = 0;
  for (const auto &[q, word] : party_.promises) {
    with.add(q);
    alone = alone && word.alone;
    if (word.accepted > newest) {
      newest = word.accepted;
      party_.proposed = {word.flags, word.ranks};
    }
  }
  party_.accepted_before = newest != 0;
  if (!alone && !suspicions_.enough(with, party_.accepted_before)) return give_up();
  party_.promised = with;
  if (newest == 0) {
    const RankSet out = suspected();
    for (int q = 0; q < world_; ++q) {
      if (!suspicions_.member(q)) continue;
      if (out.has(q)) party_.proposed.out.add(q);
      else party_.proposed.flags &= party_.promises.at(q).flags;
    }
  }
  leading_ = Leading::Proposes;
  for (const auto &[q, said] : party_.promises)
    if (q != rank_) queue_.say(q, word_of_verdict(Kind::Propose, ballot_, party_.proposed));
  hear_one(rank_, word_of_verdict(Kind::Propose, ballot_, party_.proposed));
  step();
}

// The leader may have no way to them, nor to those whom it suspects and the verdict does not leave out: one that an earlier leader has proposed.
void Consensus::tell_those_out() {
  RankSet whom = suspected();
  whom.add(verdict_->out);
  // Who waits for this rank's answer, or has answered this rank's question and waits for it.
  if (leading_ != Leading::No) whom.add(party_.asked);
  if (promised_to_say_ != 0) whom.add(owner_of(promised_to_say_, world_));
  for (int q = 0; q < world_; ++q)
    if (suspicions_.member(q) && q != rank_ && whom.has(q)) queue_.say(q, word_of_verdict(Kind::Decide, 0, *verdict_));
}

void Consensus::give_up() {
  leading_ = Leading::No;
  too_few_ = true;
  rounds_.give_up(suspicions_.live());
  queue_.say_all(word_of(Kind::TooFew, 0));
}

}  // namespace isthmus::rank
