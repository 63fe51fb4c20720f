// Who suspects whom in an agreement, whom the ranks therefore do not wait for, and how they come to know it.
#pragma once

#include <vector>

#include "rank/rank_set.hpp"
#include "rank/saying.hpp"

namespace isthmus::rank {

// Who suspects whom, and what follows.
class Suspicions {
 public:
  Suspicions(int world, RankSet members);
  bool add(int by, const RankSet &whom);  // false: that was known
  bool add_gone(int by, int rank);        // false: `by` has suspected the rank before
  bool add_ended(int rank);               // for certain. False: that was known
  bool add_left(int rank);                // false: that was known
  void add_lost(int rank) { lost_.add(rank); }
  bool alone(int rank) const;  // all other members have been lost
  const RankSet &by(int rank) const noexcept { return whom_[static_cast<size_t>(rank)]; }
  RankSet news_by(int rank) const;  // those of them of which the others may not hear anyhow
  RankSet suspected() const;
  RankSet live() const;                                          // members that are not suspected
  int first_live() const;                                        // -1: there is none
  bool enough(const RankSet &with, bool accepted_before) const;  // to decide without the others
  bool member(int rank) const noexcept { return members_.has(rank); }

 private:
  const int world_;
  const RankSet members_;
  std::vector<RankSet> whom_;  // by the rank that suspects
  RankSet ended_, left_, lost_;
};

// What this rank tells of those that it suspects.
//
// In most cases all ranks have lost the same ones. So a rank tells the lowest rank that it waits for, which tells all when it leads. Where that
// one's word leaves out some of those that this rank suspects, that one answers, and this rank tells all itself. That a rank has ended for
// certain, or has left, all hear anyhow.
class SuspicionTalk {
 public:
  SuspicionTalk(int rank, int world, const Suspicions &suspicions, SayingQueue &queue) noexcept
      : rank_(rank), world_(world), suspicions_(suspicions), queue_(queue) {}
  Saying word(Saying::Kind kind, uint64_t ballot) const;  // that says whom this rank suspects
  void say(int to) { queue_.say(to, word(Saying::Kind::Suspect, 0)); }
  // `heard`: the ranks whose word this rank knows, for the program's present call.
  void tell(const RankSet &heard);
  void tell_all_but(const RankSet &asked);  // who is asked reads it in the question
  void answer(int to);                      // that has told this rank of some that it does not suspect itself
  void answer_all();
  void begin_anew() { said_ = {}; }  // the program calls again

 private:
  const int rank_, world_;
  const Suspicions &suspicions_;
  SayingQueue &queue_;
  struct {
    int to = -1;       // who has been told
    int suspects = 0;  // how many they were
    bool all = false;  // all others have been told
  } said_;
};

}  // namespace isthmus::rank
