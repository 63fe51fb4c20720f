// One agreement of the ranks of a communicator, on one rank: the same verdict on all ranks that get one, whoever is lost meanwhile.
//
// Pure: what has come goes in, what is to be said comes out. No thread, no clock, no connection.
//
// The algorithm is Paxos for one value (L. Lamport, "Paxos Made Simple", 2001). Each rank accepts and learns. The lowest rank that nobody
// suspects leads:
//
//   leader      contribute -- Prepare -->            -- Propose -->           -- Decide -->
//   the others  contribute             <-- Promise --              <-- Accept --            verdict
//
//   Prepare   "promise me to accept nothing older than my ballot"
//   Promise   what this rank contributes and whom it suspects; or the verdict that it has accepted, which then must stay
//   Propose   the verdict: the AND of all flags, and whom the leader does not wait for
//   Accept    this rank keeps the verdict until it knows of a newer ballot's
//   Decide    enough ranks have accepted, so the verdict is final
//
// Where the leader is lost, the next rank leads, by a higher ballot. What the first may have decided was accepted by all ranks that the next
// one needs, so the next one proposes the same.
//
// Whom the leader waits for: all members that nobody suspects. A rank suspects those that are gone for it and those that its program names,
// and tells the lowest rank that it does not suspect, or everybody where that one's word says less. So an agreement of n ranks costs some 6 n
// words where all have lost the same ones. Where two suspect each other (the path between them is cut), the word of the lower one counts.
//
// How many are enough: more than half of the members, or all but those that have ended for certain. For a verdict that ranks have accepted
// before, those that have left do not count either: they may have had it. So of two halves of a network that is cut at most one decides. `alone` (the program allows a minority) gives that up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "rank/rank_set.hpp"
#include "rank/rounds.hpp"
#include "rank/saying.hpp"
#include "rank/suspicions.hpp"

namespace isthmus::rank {

class Consensus {
 public:
  // `members`: who takes part, `rank` among them.
  Consensus(int rank, int world, RankSet members);
  Consensus(const Consensus &) = delete;

  // The program's part. Called again, it replaces what has not been proposed yet, and ends too_few().
  void contribute(uint64_t flags, const RankSet &suspects, bool alone);
  // The program's call has failed. This rank leads no more, and promises nothing more, until the program contributes again. What it has promised
  // stays.
  void withdraw();
  void hear(int from, const Saying &word);
  void gone(int rank, Gone how);

  std::vector<Addressed> take_words();  // in the order in which they are to be sent
  const std::optional<Verdict> &verdict() const noexcept { return verdict_; }
  bool too_few() const noexcept { return too_few_; }  // for the text of an error; the agreement may still succeed
  // Who has not said its word yet, as far as this rank knows. Who leads knows all of them. Another rank waits for the one that leads alone, and for
  // nobody that it knows where that one has asked for its word since this rank's last call failed: then that one waits too.
  RankSet unanswered() const;
  int leader() const;  // this rank, or the rank that it waits for; -1: nobody is left
  // Whom this rank does not wait for.
  RankSet suspected() const { return suspicions_.suspected(); }

 private:
  enum class Leading : uint8_t { No, Collects, Proposes };
  struct Mine {
    uint64_t flags;
    bool alone;
  };

  bool waits_for_promised() const;
  void answer(int to, Saying word) { to == rank_ ? hear_one(to, word) : queue_.say(to, std::move(word)); }
  void hear_one(int from, const Saying &word);
  void on_prepare(int from, const Saying &word);
  void on_propose(int from, const Saying &word);
  void promise();
  void catch_up();
  void step();
  void lead();
  void propose();
  void tell_those_out();
  bool too_few_for(int rank) const;
  void say_too_few(int to) { queue_.say(to, word_of(Saying::Kind::TooFew, 0)); }
  void give_up();

  const int rank_, world_;
  std::optional<Mine> mine_;
  Suspicions suspicions_;
  SayingQueue queue_;
  SuspicionTalk talk_;
  Rounds rounds_;
  // As one that accepts.
  uint64_t promised_ = 0, promised_to_say_ = 0;  // the ballot of which Promise is still to be said; 0: none
  uint64_t accepted_ = 0;
  std::map<int, uint64_t> put_off_;  // the newest ballots of leaders for which this rank did not wait when they asked
  RankSet heard_;                    // who has called the agreement, by words that came since this rank's last call failed
  Verdict accepted_verdict_;
  // As the leader.
  Leading leading_ = Leading::No;
  uint64_t ballot_ = 0;
  struct {
    RankSet asked;  // for a promise by that ballot
    std::map<int, Saying> promises, accepts;
    RankSet promised;  // who had promised when the verdict was proposed
    Verdict proposed;
    bool accepted_before = false;  // that verdict is of an earlier ballot
  } party_;
  // As one that learns.
  std::optional<Verdict> verdict_;
  struct {
    int by = -1;       // from whom this rank has the verdict; -1: from nobody, it has led
    bool all = false;  // that one has told all
  } told_;
  bool too_few_ = false;
};

}  // namespace isthmus::rank
