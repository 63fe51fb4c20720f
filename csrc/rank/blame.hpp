// Blame turns a wait that took too long into a text. The text names the culprit, and not the neighbour that waits like this rank. Blame asks
// other processes, so Blame is off the hot path only.
//
//   this rank: late             rank 1                     rank 2
//   asks rank 1       ------->  "I wait for rank 2"
//   asks rank 2       ---------------------------------->  "I have not called #41"
//   fails with: rank 2 has not called #41 (rank 1 waits for rank 2)
//
// Thread rules: with the right to execute.
#pragma once

#include <string>
#include <vector>

#include "rank/names.hpp"
#include "rank/wait_chain.hpp"

namespace isthmus::rank {

class Blame {
 public:
  // `served_in` has, by rank, the number of the island in which a library serves the rank; -1: no library does. A rank that waits inside a
  // library waits for ranks of the same island.
  Blame(RankCore &core, Collectives &collectives, Messages &messages, std::vector<int> served_in)
      : core_(core), collectives_(collectives), messages_(messages), served_in_(std::move(served_in)) {}

  // Each fails the communicator: for a collective that has met its deadline; where a message has met its deadline, or the message's peer has
  // left; where an operation has met its deadline while its thread is held up in the submission.
  void fail_late(const Operation &op, const Operation &late) noexcept;
  void fail_late_message(int64_t now) noexcept;
  void fail_late_submission(int64_t now) noexcept;

 private:
  // Follows the chain of who waits for whom from rank `first` to its end.
  std::string culprit(const Operation &op, int first, Culprit &found) noexcept;
  // Names the rank that keeps the library of this rank's island waiting: the rank has not called the operation, or does not answer.
  std::string library_text(const Operation &op, Culprit &found) noexcept;
  std::string library_call_text(const Operation &op) const;
  struct LateMessage;
  bool find_late(int64_t now, LateMessage &found) noexcept;
  std::string own_device_text(
      const Operation &op) const;  // of a message whose copy from or to the device has not come to its end
  std::string no_place_text(const Operation &op) const;
  std::string library_message_text() const;
  const std::string inside() const;  // "; rank 0 is in ...", or empty

  RankCore &core_;
  Collectives &collectives_;
  Messages &messages_;
  const std::vector<int> served_in_;
};

}  // namespace isthmus::rank
