// How a shrink and a grow end, and with them a reconfigure: all ranks that are left agree whether all of them have what they made. All keep it, or
// nobody does.
//
//   agree: who takes part --> make it --> confirm(): have all made it? --> yes: all keep it
//                                           |                         \--> no: all let go of it
//                                           \--> this rank hears no answer: it keeps what it has made, and says so to the caller
//   the next call                 resume(): the same agreement comes to its end first, without the ranks that are named now
//
// So a rank that stops between the two agreements holds nobody up who names it: the next call names it in the agreement that the others may still
// be in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/abort_watch.hpp"

namespace isthmus::comm {

class Communicator;

// How a call asks the other ranks.
struct Asking {
  const std::vector<int> &suspects;  // without whom this rank wants to go on
  Deadline deadline;
  const AbortWatch &watch;
};

// An agreement of such a call: RankAgreement::agree() for the majority alone, which an abort ends.
rank::Verdict agree(rank::Rank &of, uint64_t flags, const Asking &asking);

// An agreement of the program's: see isthmus_comm_agree(). Any thread.
rank::Verdict agree(Communicator &whole, uint64_t flags, const std::vector<int> &suspects, bool alone, Deadline deadline);

// What a call is to make. A call that fails may be followed by another one, and what came of the first is not what that one asked for.
struct Subject {
  enum class Of : uint8_t { Nothing, Shrink, Grow };
  Of of = Of::Nothing;
  uint64_t which = 0;  // of a grow: by which ticket, and whether the old communicator ends with it
  bool operator==(const Subject &) const = default;
};

struct Confirmed {
  std::shared_ptr<Communicator> made;  // that all have; null: nobody keeps it
  bool may_try_again = false;          // all of them
  std::vector<int> out;                // ranks that are out since
};

// Thread rules: one thread at a time (Communicator::split_mutex_).
class Confirmation {
 public:
  // `made`: by this rank; null: it has not made it. Throws where it hears no answer, and keeps `made` for resume(). Where nobody keeps it, it ends with
  // the caller's pointer.
  Confirmed confirm(Communicator &whole, Subject what, std::shared_ptr<Communicator> made, bool may_try_again,
                    const Asking &asking);
  // Nothing: no earlier call of this rank waits for an answer. Error(Aborted): all others have what an earlier call of another subject was to make;
  // that call may be made again, and gets it.
  std::optional<Confirmed> resume(Communicator &whole, Subject what, const Asking &asking);
  // Before an agreement of the program's. Where an earlier call of this rank waits for an answer, that agreement comes to its end here, as by resume()
  // for a call that makes nothing. Else the program's word would be taken for this rank's word on what was made. Throws what resume() throws.
  // `alone`: the ranks may go on where they are no more than half, and too few to know what the others have.
  void settle(Communicator &whole, const std::vector<int> &suspects, bool alone, Deadline deadline);
  // What waits for an answer.
  Subject subject(const Communicator &whole) const;
  // `whole` ends. What was made of it is free when the others leave that, for they may have it.
  void end(Communicator &whole) noexcept;

 private:
  Confirmed ask(Communicator &whole, bool mine, bool may_try_again, const Asking &asking);
  Subject what_;
  uint64_t number_ = 0;  // of the agreement
  bool all_have_ = false;
  std::shared_ptr<Communicator> made_;
};

}  // namespace isthmus::comm
