// How the ranks of a part of a communicator meet: over the control connections of the communicator that they are ranks of.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/rendezvous.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm {

// The ranks of the part exchange among themselves, and wait for no rank of another part. A rank that gives up says so, and the others of the
// part end at once; the communicator goes on. The communicator's failure ends the exchange.
class PartExchange final : public bootstrap::Exchange {
 public:
  // `what`: of this part's making alone, the same on all its ranks; also for errors. `members`: ranks of `whole`, in the part's order.
  PartExchange(rank::Rank &whole, std::string what, std::vector<int> members);
  std::vector<bootstrap::Blob> all_gather(const bootstrap::Blob &mine, Deadline deadline) override;
  // This rank will not come to the next exchange, and why.
  void give_up(const Status &why) noexcept;

 private:
  std::vector<bootstrap::Blob> gather(const bootstrap::Blob &mine, Deadline deadline);
  void look() const;  // throws where waiting is in vain
  void hear_farewells() const;
  std::string name() const;
  rank::Rank &whole_;
  const std::string what_;
  const std::vector<int> members_;
  std::vector<int> ranks_;  // the members, ascending
};

}  // namespace isthmus::comm
