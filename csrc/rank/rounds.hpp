// The rounds of an agreement (consensus.hpp): which calls of the ranks belong together where calls fail because the ranks are too few.
//
// A rank's first call is of round 1. Where a call has failed because they are too few, the rank's next call is of the next round. A leader that
// gives up says so, with its round. That ends calls of this round and of older ones: a rank that calls late hears what the others have heard. A
// rank that has called again since waits for the leader's next call.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "rank/rank_set.hpp"

namespace isthmus::rank {

class Rounds {
 public:
  explicit Rounds(int rank) noexcept : rank_(rank) {}
  uint64_t now() const noexcept { return now_; }  // of this rank's call, or of its last one
  void begin_call();
  void end_call(bool too_few) { ended_ = too_few; }
  // Whether this rank's call of that round, or of a newer one, has failed, so that it has no more to say in it.
  bool has_failed_in(uint64_t round) const noexcept { return ended_ && round <= now_; }

  void give_up(RankSet waited_for);  // this rank
  void try_again() { given_up_.erase(rank_); }
  bool tried_with(const RankSet &waited_for) const { return waited_for_.has(waited_for); }
  void gave_up(int rank, uint64_t round);
  void goes_on(int rank, uint64_t round);  // it asks, or answers
  void ask_all() { given_up_.clear(); }    // who has given up says so again
  // Whether that rank, or this one, has given up in such a way that this rank's call cannot succeed by it.
  bool has_given_up(int rank) const;
  bool has_given_up(const RankSet &any_of) const;

 private:
  const int rank_;
  uint64_t now_ = 1;
  bool ended_ = false;
  std::map<int, uint64_t> given_up_;  // in which round
  RankSet waited_for_;                // when this rank gave up
};

}  // namespace isthmus::rank
