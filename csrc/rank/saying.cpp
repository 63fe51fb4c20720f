#include "rank/saying.hpp"

namespace isthmus::rank {

Saying word_of(Saying::Kind kind, uint64_t ballot) {
  Saying word;
  word.kind = kind;
  word.ballot = ballot;
  return word;
}

Saying word_of_verdict(Saying::Kind kind, uint64_t ballot, const Verdict &verdict) {
  Saying word = word_of(kind, ballot);
  word.flags = verdict.flags;
  word.ranks = verdict.out;
  return word;
}

void SayingQueue::say_all(const Saying &word) {
  for (int q = 0; q < world_; ++q)
    if (members_.has(q) && q != rank_) say(q, word);
}

}  // namespace isthmus::rank
