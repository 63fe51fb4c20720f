#include "rank/suspicions.hpp"

#include <utility>

namespace isthmus::rank {
namespace {

bool add_new(RankSet &set, int rank) {  // false: it was there
  if (set.has(rank)) return false;
  set.add(rank);
  return true;
}

}  // namespace

Suspicions::Suspicions(int world, RankSet members)
    : world_(world),
      members_(std::move(members)),
      whom_(static_cast<size_t>(world), RankSet(world)),
      ended_(world),
      left_(world),
      lost_(world) {}

bool Suspicions::add(int by, const RankSet &whom) {
  RankSet &known = whom_[static_cast<size_t>(by)];
  const bool news = !known.has(whom);
  known.add(whom);
  return news;
}

bool Suspicions::add_gone(int by, int rank) { return add_new(whom_[static_cast<size_t>(by)], rank); }

bool Suspicions::add_ended(int rank) { return add_new(ended_, rank); }

bool Suspicions::add_left(int rank) { return add_new(left_, rank); }

// The word of a rank counts where no lower rank suspects that rank, and until this rank hears it no more: a word that cannot be taken back would
// keep ranks apart that reach each other.
RankSet Suspicions::suspected() const {
  RankSet out(world_);
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && !out.has(q) && !lost_.has(q)) out.add(whom_[static_cast<size_t>(q)]);
  return out;
}

RankSet Suspicions::news_by(int rank) const {
  RankSet out(world_);
  for (int q = 0; q < world_; ++q)
    if (by(rank).has(q) && !ended_.has(q) && !left_.has(q)) out.add(q);
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

int Suspicions::first_live() const {
  const RankSet out = suspected();
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && !out.has(q)) return q;
  return -1;
}

bool Suspicions::enough(const RankSet &with, bool accepted_before) const {
  if (2 * with.count() > members_.count()) return true;
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && !with.has(q) && !ended_.has(q) && !(accepted_before && left_.has(q))) return false;
  return true;
}

// ---- what a rank tells of it ---------------------------------------------------------------------------------------------------------

Saying SuspicionTalk::word(Saying::Kind kind, uint64_t ballot) const {
  Saying word = word_of(kind, ballot);
  word.ranks = suspicions_.by(rank_);
  return word;
}

void SuspicionTalk::tell(const RankSet &heard) {
  const RankSet &mine = suspicions_.by(rank_);
  const int first = suspicions_.first_live();
  if (mine.count() == 0 || first < 0) return;
  const bool says_less = heard.has(first) && !suspicions_.by(first).has(suspicions_.news_by(rank_));
  const bool all = said_.all || first >= rank_ || says_less;
  if (said_.suspects == mine.count() && said_.all == all && (all || said_.to == first)) return;
  said_ = {first, mine.count(), all};
  if (all) queue_.say_all(word(Saying::Kind::Suspect, 0));
  else say(first);
}

void SuspicionTalk::tell_all_but(const RankSet &asked) {
  said_ = {rank_, suspicions_.by(rank_).count(), true};
  for (int q = 0; q < world_ && said_.suspects > 0; ++q)
    if (suspicions_.member(q) && !asked.has(q)) say(q);
}

void SuspicionTalk::answer(int to) {
  if (!suspicions_.by(rank_).has(suspicions_.by(to))) say(to);
}

void SuspicionTalk::answer_all() {
  for (int q = 0; q < world_; ++q)
    if (q != rank_) answer(q);
}

}  // namespace isthmus::rank
