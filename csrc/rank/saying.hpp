// What ranks say to each other in an agreement (consensus.hpp has the order of it), and what one rank has to say.
#pragma once

#include <cstdint>
#include <utility>
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
//   Left     it has left the communicator, and lives. What it had to say of its agreements has come before, by the same connection
//   Surely   it has ended
//   Cut      no data goes between it and this rank, but words may
enum class Gone : uint8_t { Perhaps, Left, Surely, Cut };

// What one rank says to another in an agreement.
struct Saying {
  enum class Kind : uint32_t {
    Suspect = 1,  // `ranks`: whom the sender suspects
    Prepare = 2,  // the same
    Promise =
        3,  // `accepted` 0: `flags`, `alone` and `ranks` (suspected) are the sender's; else `flags` and `ranks` (out) are the verdict's
    Propose = 4,
    Accept = 5,
    Decide = 6,     // `flags`, `ranks`: the verdict. `ballot` 0: not the leader's word, which goes to all
    Overtaken = 7,  // a word of an older ballot than `ballot`, which the sender has promised
    TooFew = 8      // the leader has heard of all that it can hear of, and they are too few.
  };
  Kind kind{};
  uint64_t ballot = 0, accepted = 0, flags = 0;
  uint64_t round = 1;  // of the sender's last call, or of its first (rounds.hpp)
  bool alone = false;
  RankSet ranks;
};

struct Addressed {
  int to;
  Saying word;
};

Saying word_of(Saying::Kind kind, uint64_t ballot);
Saying word_of_verdict(Saying::Kind kind, uint64_t ballot, const Verdict &verdict);

// The words that are still to be sent, in their order.
class SayingQueue {
 public:
  SayingQueue(int rank, int world, RankSet members) : rank_(rank), world_(world), members_(std::move(members)) {}
  void say(int to, Saying word) { words_.push_back({to, std::move(word)}); }
  void say_all(const Saying &word);  // to all other members
  std::vector<Addressed> take() { return std::exchange(words_, {}); }

 private:
  const int rank_, world_;
  const RankSet members_;
  std::vector<Addressed> words_;
};

}  // namespace isthmus::rank
