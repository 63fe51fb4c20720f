#include "rank/rounds.hpp"

#include <algorithm>

namespace isthmus::rank {

void Rounds::begin_call() {
  if (std::exchange(ended_, false)) ++now_;
  try_again();
}

void Rounds::give_up(RankSet waited_for) {
  given_up_[rank_] = now_;
  waited_for_ = std::move(waited_for);
}

void Rounds::gave_up(int rank, uint64_t round) {
  uint64_t &newest = given_up_[rank];
  newest = std::max(newest, round);
}

// In a newer round than the one in which it gave up it goes on for calls of that round alone, and has_given_up() says so.
void Rounds::goes_on(int rank, uint64_t round) {
  if (const auto at = given_up_.find(rank); at != given_up_.end() && at->second == round) given_up_.erase(at);
}

bool Rounds::has_given_up(int rank) const {
  const auto at = given_up_.find(rank);
  return at != given_up_.end() && at->second >= now_;
}

bool Rounds::has_given_up(const RankSet &any_of) const {
  for (const auto &[rank, round] : given_up_)
    if (round >= now_ && any_of.has(rank)) return true;
  return false;
}

}  // namespace isthmus::rank
