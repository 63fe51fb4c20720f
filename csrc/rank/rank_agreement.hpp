// The agreements of one rank with the other ranks of its communicator (consensus.hpp), over the control connections. They work on a communicator
// that has failed or was aborted.
//
// The first agreement of one rank meets the first of the others, and so on. A call that fails does not count: the next call goes on with the
// same agreement. Whom an agreement has left out takes part in none that follows.
//
// Thread rules: any thread, but one agree() at a time.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/lock.hpp"
#include "rank/consensus.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

class RankAgreement {
 public:
  explicit RankAgreement(RankCore &core);

  // Collective over the ranks that live. Gives the AND of the `flags`, and the ranks that are out: those that are gone, and those that the program
  // of some rank names in `suspects`. The same on all ranks that get an answer.
  //   `alone`  the ranks may go on where they are no more than half; the same on all of them
  //   `ended`  is called now and then while the agreement waits; the call ends with what is not OK
  // Throws Error(Timeout): a rank has not called, or does not answer; with the ranks of Consensus::unanswered(), unless the rank that leads leads for
  // less than half of this call's time: then with none; or with those that are out of reach, of whom some are about to end. Error(PeerLost), with those
  // that are out of reach: the ranks that are left are no more than half.
  // Error(Aborted): this rank is out, or the communicator was destroyed here. Error(Interrupted).
  Verdict agree(uint64_t flags, const std::vector<int> &suspects, bool alone, Deadline deadline,
                const std::function<Status()> &ended = {});
  RankSet members() const;  // who takes part in the next agreement
  uint64_t number() const;  // of the next agreement; the same on all ranks that have the verdict of the one before

  void came(const process::AgreeHead &head, std::span<const std::byte> ranks);
  void look();         // a rank may be gone
  void cut(int rank);  // the way to the rank is cut; its process may live

 private:
  using Outgoing = std::vector<Addressed>;
  struct Early {
    int from;
    Saying word;
  };
  Consensus &current() ISTHMUS_REQUIRES(mutex_);
  void note_gone() ISTHMUS_REQUIRES(mutex_);
  bool news_may_come(const Consensus &consensus, bool soon) const ISTHMUS_REQUIRES(mutex_);
  Outgoing take_words(uint64_t number) ISTHMUS_REQUIRES(mutex_);
  Verdict finish(uint64_t number) ISTHMUS_REQUIRES(mutex_);
  void say(uint64_t number, const Outgoing &words) noexcept;
  void said();
  std::string name(uint64_t number) const;
  [[noreturn]] void fail_too_few(uint64_t number, const RankSet &out) const;
  [[noreturn]] void fail_ending(uint64_t number, const RankSet &out) const;
  [[noreturn]] void fail_early(uint64_t number, const Consensus &consensus) const;
  [[noreturn]] void fail_late(uint64_t number, const Consensus &consensus, bool ending, bool new_leader) const;
  void check_in(uint64_t number) const ISTHMUS_REQUIRES(mutex_);

  RankCore &core_;
  std::atomic<bool> calling_{false};
  mutable Mutex mutex_;  // held while /proc is asked whether a process is ending
  Condition changed_;
  uint64_t number_ ISTHMUS_GUARDED_BY(mutex_) = 1;  // of the agreement that this rank is in, or will be in next
  RankSet members_ ISTHMUS_GUARDED_BY(mutex_);
  RankSet cut_ ISTHMUS_GUARDED_BY(mutex_);
  std::map<uint64_t, Consensus> kept_ ISTHMUS_GUARDED_BY(mutex_);  // the current one, and the last that are over
  std::deque<Early> early_
      ISTHMUS_GUARDED_BY(mutex_);              // of the agreement after the current one: of each rank a word of each kind
  int saying_ ISTHMUS_GUARDED_BY(mutex_) = 0;  // threads that send what came of a word or of a loss
};

}  // namespace isthmus::rank
