// How the ranks of a part of a communicator meet: over the control connections of the whole communicator.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bootstrap/rendezvous.hpp"
#include "comm/abort_watch.hpp"

namespace isthmus::comm {

// The ranks of the part exchange among themselves, and wait for no rank of another part. A rank that gives up says so, and the exchange ends at
// once on the other ranks of the part. The whole communicator goes on. The failure of the whole communicator ends the exchange, unless it is known.
//
//   rank 0   all_gather: waits for rank 1 ......... Error with rank 1's reason     } one part
//                                              ^
//   rank 1   give_up(why) ---------------------/
//
//   rank 2   all_gather with rank 3: goes on                                       } another part
class PartExchange final : public bootstrap::Exchange {
 public:
  int number(int rank) const noexcept { return whole_.id().number(rank); }  // of a rank of the whole, for people
  // `what`: a text for the making of this part alone, the same on all ranks of the part. Errors have the text too. `members`: ranks of `whole`,
  // in the part's order.
  // `ends`: whether the failure of the whole communicator ends the exchange. A rank of the part that is gone always does.
  // `watch`: what else does; null: an abort of the whole one alone.
  enum class WholeFailed : uint8_t { Ends, IsKnown };
  PartExchange(rank::Rank &whole, std::string what, std::vector<int> members, WholeFailed ends = WholeFailed::Ends,
               const AbortWatch *watch = nullptr);
  std::vector<bootstrap::Blob> all_gather(const bootstrap::Blob &mine, Deadline deadline) override;
  // Tells the other ranks of the part that this rank will not come to the next exchange, and why.
  void give_up(const Status &why) noexcept;
  void look() override;
  bool heard_farewell() const noexcept { return heard_; }  // another rank has given up, and a call ended with its error
  void over();  // behind its last exchange: what ranks that gave up have said is dropped

 private:
  std::vector<bootstrap::Blob> gather(const bootstrap::Blob &mine, Deadline deadline);
  void hear_farewells() const;
  std::string name() const;
  rank::Rank &whole_;
  const std::string what_;
  const std::vector<int> members_;
  const WholeFailed ends_;
  const AbortWatch *const watch_;
  std::vector<int> ranks_;  // the members, ascending
  mutable bool heard_ = false;
  uint64_t turn_ = 0;  // of the exchanges of single pieces
};

}  // namespace isthmus::comm
