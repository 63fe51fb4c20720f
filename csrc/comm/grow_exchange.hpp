// How the members of a communicator and the processes that are to join them meet: the members over the connections that they have, the newcomers
// through the member that made the ticket, which is called the host here.
//
//   member    mine ---------------- PartExchange --\                         /--> all blobs
//   host      the newcomers' and mine, as one blob --> crosses the members --<
//   newcomer  mine -> its connection with the host                           \--> the host passes all blobs on
#pragma once

#include <vector>

#include "bootstrap/newcomers.hpp"
#include "comm/numbering.hpp"
#include "comm/part_exchange.hpp"

namespace isthmus::comm {

// Which ranks of the grown communicator are members of the old one, and which are newcomers. Pure.
struct GrownRanks {
  std::vector<int> newcomers;  // ranks, ascending
  std::vector<int> members;    // by the rank in the old communicator
  Numbering numbering;         // of the grown communicator
  std::vector<int> slots;      // of the newcomers, ascending
  // `slots` are those that the newcomers are to have.
  //   Dense   empty: the newcomers stand behind the members. Else the members have the numbers that are left, in their order
  //   Kept    each member keeps its slot. Empty: the newcomers have the lowest holes, then slots behind all others
  // Throws Error(Argument): a slot twice, one that is no number of the grown communicator, or in which a member lives.
  static GrownRanks of(const Numbering &old, int newcomers, std::vector<int> slots, Numbers numbers);
  int world() const noexcept { return static_cast<int>(newcomers.size() + members.size()); }
};

class GrowExchange final : public bootstrap::Exchange {
 public:
  // `come`: on the host, else null.
  GrowExchange(PartExchange &members, const GrownRanks &ranks, int host, bootstrap::Newcomers *come)
      : members_(members), ranks_(ranks), host_(host), come_(come) {}
  std::vector<bootstrap::Blob> all_gather(const bootstrap::Blob &mine, Deadline deadline) override;
  void look() override { members_.look(); }

 private:
  bootstrap::Blob with_newcomers(const bootstrap::Blob &mine, Deadline deadline);
  PartExchange &members_;
  const GrownRanks &ranks_;
  const int host_;
  bootstrap::Newcomers *const come_;
};

}  // namespace isthmus::comm
