// What other processes and the links tell one rank: credit, peers that leave or are gone, connections that break. And the rank's answer to a
// process that asks what the rank does.
//
// Thread rules: any thread.
#pragma once

#include <string>

#include "rank/driver.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

class PeerEvents {
 public:
  PeerEvents(RankCore &core, Collectives &collectives, Messages &messages, const RankDriver &driver) noexcept
      : core_(core), collectives_(collectives), messages_(messages), driver_(driver) {}

  void credit(uint32_t rank, uint64_t granted) noexcept;
  // The process of a rank is lost: "rank 2 (...) is gone: <why>", or "rank 1 (...) does not reach rank 2 (...): <why>".
  void lost(bootstrap::Peer &process, const std::string &why) noexcept;
  void link_broken(const link::Link *link, const std::string &why) noexcept;
  // The rank destroyed its side. `sent`: of messages to this rank.
  void left(uint32_t rank, uint64_t done, uint64_t sent, Leaving how) noexcept;
  void ends_library(uint32_t rank, Leaving how) noexcept;  // said by a rank that has left
  Answer answer(const process::RankQuestion &question) noexcept;
  // What a thread of this rank waits for: "#3 all_reduce (...) of 'world', waiting for rank 2", "send to rank 0 (...) of 'world', ...", or empty.
  std::string waiting_text() noexcept;

 private:
  void fail_lost(bootstrap::Peer &process, const std::string &why, bool unreachable) noexcept;
  static void nothing_more_of(PeerRank &p) noexcept;
  bool is_rank(uint32_t rank) const noexcept { return rank < static_cast<uint32_t>(core_.id.world); }
  RankCore &core_;
  Collectives &collectives_;
  Messages &messages_;
  const RankDriver &driver_;
};

}  // namespace isthmus::rank
