// How a step of joining ends alike on all ranks: each rank tries its part, then all ranks vote.
//
//   rank 0   Attempts: all parts went well ------- vote: Fine ---\     /--- throws rank 1's reason
//                                                                >---<
//   rank 1   Attempts: the second part failed ---- vote: Failed -/     \--- throws its own reason
#pragma once

#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/join/invitation.hpp"

namespace isthmus::comm::join {

// The parts of a step on this rank. The first failure of a part is kept until the step's end, where all ranks hear of it. The parts behind a failed
// part are left out, but those for which other ranks wait, in any_way().
class Attempts {
 public:
  explicit Attempts(const Invitation &invitation) : invitation_(invitation) {}
  template <class Part>
  void operator()(const Part &part) {
    if (trouble_.ok()) any_way(part);
  }
  template <class Part>
  void any_way(const Part &part) {
    try {
      part();
    } catch (const Error &e) { note(e.code(), e.text()); } catch (const std::exception &e) {  // no memory, no thread
      note(Code::Resource, e.what());
    }
  }
  const Status &trouble() const noexcept { return trouble_; }

 private:
  void note(Code code, const std::string &why) {
    if (trouble_.ok())
      trouble_ = {code, formatted("init of '{}' on rank {}: {}", invitation_.name, invitation_.number(), why)};
  }
  const Invitation &invitation_;
  Status trouble_;
};

// What a rank says at the end of a step.
struct Ballot {
  enum class Vote : uint8_t { Fine = 1, NoMemory = 2, Failed = 3 };
  Vote vote = Vote::Fine;
  Status trouble;
  bootstrap::Blob extra;  // for the next step

  bootstrap::Blob pack() const;
  static Ballot unpack(const bootstrap::Blob &blob, const std::string &name, size_t rank);
};

// Each rank says whether its part of the step went well. Returns the ballots of all ranks. Where a rank failed, all ranks throw that rank's
// reason, so no rank takes the end of another rank for the cause. A rank that waited in vain is not the cause where another rank has failed.
std::vector<Ballot> vote(const Invitation &invitation, Ballot mine);

}  // namespace isthmus::comm::join
