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
// and tells everybody. Where two suspect each other (the way between them is cut), the word of the lower one counts.
//
// How many are enough: more than half of the members, or all but those that have ended for certain. For a verdict that ranks have accepted
// before, those that have left do not count either: they may have had it. So of two halves of a network that is cut at most one decides. `alone` (the program allows a minority) gives that up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "rank/rank_set.hpp"

namespace isthmus::rank {

struct Verdict {
  uint64_t flags = 0;  // the AND of what the ranks have contributed that are not in `out`
  RankSet out;         // the ranks with which the others do not go on
  bool operator==(const Verdict &) const = default;
};

// What is known of a rank that is gone.
//   Perhaps  the way to it is cut, and it may live
//   Left     it has left the communicator, and lives. What it had to say of its agreements has come before
//   Surely   it has ended
enum class Gone : uint8_t { Perhaps, Left, Surely };

// What one rank says to another in an agreement.
struct Saying {
  enum class Kind : uint32_t {
    Suspect = 1,  // `ranks`: whom the sender suspects
    Prepare = 2,
    Promise =
        3,  // `accepted` 0: `flags`, `alone` and `ranks` (suspected) are the sender's; else `flags` and `ranks` (out) are the verdict's
    Propose = 4,
    Accept = 5,
    Decide = 6,     // `flags`, `ranks`: the verdict. `ballot` 0: not the leader's word, which goes to all
    Overtaken = 7,  // a word of an older ballot than `ballot`, which the sender has promised
    TooFew = 8      // the leader has heard of all that it can hear of, and they are too few
  };
  Kind kind{};
  uint64_t ballot = 0, accepted = 0, flags = 0;
  bool alone = false;
  RankSet ranks;
};

// Who suspects whom, and what follows.
class Suspicions {
 public:
  Suspicions(int world, RankSet members);
  void add(int by, const RankSet &whom) { whom_[static_cast<size_t>(by)].add(whom); }
  bool add_gone(int by, int rank);  // false: `by` has suspected the rank before
  bool add_ended(int rank);         // for certain. False: that was known
  bool add_left(int rank);          // false: that was known
  void add_lost(int rank) { lost_.add(rank); }
  bool alone(int rank) const;  // all other members have been lost
  const RankSet &by(int rank) const noexcept { return whom_[static_cast<size_t>(rank)]; }
  RankSet suspected() const;
  RankSet live() const;                                          // members that are not suspected
  bool enough(const RankSet &with, bool accepted_before) const;  // to decide without the others
  bool member(int rank) const noexcept { return members_.has(rank); }

 private:
  const int world_;
  const RankSet members_;
  std::vector<RankSet> whom_;  // by the rank that suspects
  RankSet ended_, left_, lost_;
};

class Consensus {
 public:
  // `members`: who takes part, `rank` among them.
  Consensus(int rank, int world, RankSet members);

  // The program's part. Called again, it replaces what has not been proposed yet, and ends too_few().
  void contribute(uint64_t flags, const RankSet &suspects, bool alone);
  // The program's call has failed. This rank leads no more, and promises nothing more, until the program contributes again. What it has promised
  // stays.
  void withdraw();
  void hear(int from, const Saying &word);
  void gone(int rank, Gone how);

  struct Addressed {
    int to;
    Saying word;
  };
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

  void say(int to, Saying word);
  void tell_suspects();
  void say_all(const Saying &word);
  void answer(int to, Saying word) { to == rank_ ? hear_one(to, word) : say(to, std::move(word)); }
  void hear_one(int from, const Saying &word);
  void on_prepare(int from, const Saying &word);
  void on_propose(int from, const Saying &word);
  void promise();
  void catch_up();
  void step();
  void lead();
  void propose();
  void tell_those_out();
  void give_up();

  const int rank_, world_;
  std::optional<Mine> mine_;
  Suspicions suspicions_;
  // As one that accepts.
  uint64_t promised_ = 0, promised_to_say_ = 0;  // the ballot of which Promise is still to be said; 0: none
  uint64_t accepted_ = 0;
  uint64_t put_off_ = 0;  // the newest ballot of a leader for which this rank did not wait when it asked; 0: none
  RankSet heard_;         // who has called the agreement, by words that came since this rank's last call failed
  Verdict accepted_verdict_;
  // As the leader.
  Leading leading_ = Leading::No;
  uint64_t ballot_ = 0;
  std::map<int, Saying> promises_, accepts_;
  struct {
    RankSet asked;                 // for a promise by that ballot
    RankSet promised;              // who had promised when the verdict was proposed
    bool accepted_before = false;  // that verdict is of an earlier ballot
  } party_;
  Verdict proposed_;
  // As one that learns.
  std::optional<Verdict> verdict_;
  struct {
    int by = -1;       // from whom this rank has the verdict; -1: from nobody, it has led
    bool all = false;  // that one has told all
  } told_;
  bool too_few_ = false;
  std::vector<Addressed> out_;
};

}  // namespace isthmus::rank
