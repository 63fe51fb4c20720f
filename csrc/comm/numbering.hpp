// The numbers of a communicator's ranks. Inside of the library ranks are counted without gaps. People know a rank by its slot, and slots may have
// gaps: holes, which are slots that no rank has.
//
//   slot   0  1  2  3  4        ranks that left had 1 and 4
//   rank   0  .  1  2  .        five slots, three ranks
//
// Pure. Slots ascend with ranks, so an order of ranks is one of slots too.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"

namespace isthmus::comm {

// How a communicator that is made of another one numbers its ranks.
enum class Numbers : uint8_t {
  Dense,  // 0, 1, 2, ... in their order
  Kept    // each rank that stays has the slot that it had
};

class Numbering {
 public:
  Numbering() = default;
  explicit Numbering(int ranks);  // no holes
  // `members`: the slots that have a rank, ascending. `slots`: how many there are. Error(Argument): not ascending, or outside of 0 to slots - 1.
  Numbering(std::vector<int> members, int slots);

  int ranks() const noexcept { return static_cast<int>(members_.size()); }
  int slots() const noexcept { return static_cast<int>(ranks_.size()); }
  bool has_holes() const noexcept { return members_.size() != ranks_.size(); }
  // Whether the members' slots follow each other without a hole between them. Holes in front and behind do not count.
  bool consecutive() const noexcept { return members_.empty() || members_.back() - members_.front() + 1 == ranks(); }
  const std::vector<int> &members() const noexcept { return members_; }  // the slots that have a rank, ascending
  int slot(int rank) const noexcept { return members_[static_cast<size_t>(rank)]; }
  int rank(int slot) const noexcept {  // -1: a hole, or no slot
    return slot >= 0 && slot < slots() ? ranks_[static_cast<size_t>(slot)] : -1;
  }
  std::vector<int> slots_of(std::span<const int> ranks) const;  // leaves out what is no rank

  // The rank of a slot that the caller of `call` has named. Error(Argument): nobody has it, and the text lists who is there.
  int rank_of(const char *call, int slot) const;
  std::vector<int> ranks_of(const char *call, std::span<const int> slots) const;
  std::string text() const;  // of the members: "0,2,3"

  // What is left with these ranks, ascending.
  Numbering left(std::span<const int> ranks, Numbers numbers) const;

 private:
  std::vector<int> members_;  // by rank
  std::vector<int> ranks_;    // by slot; -1: a hole
};

// Calls f(). Of an Error that leaves it the ranks become slots, for the caller of the library.
template <class F>
auto by_slots(const Numbering &numbering, F f) {
  try {
    return f();
  } catch (const Error &e) {
    if (e.ranks().empty() || !numbering.has_holes()) throw;
    throw Error(e.code(), e.text(), numbering.slots_of(e.ranks()));
  }
}

}  // namespace isthmus::comm
