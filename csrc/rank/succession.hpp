// Succession is how the rank of an epoch that ends leaves what it has to the rank of the next epoch in the same process.
//
//   old epoch's rank                        new epoch's rank, while the ranks make it
//   estate(): what is whole      ------->   offers it to the others
//                                           works with what goes on: borrowed()
//   all have the new epoch:
//   lets go                      <-------   keep(): it is its own
//   or some rank has not:
//   has all it had               <-------   give_back()
//
// In between both have the same ring and the same communicator of the library, and neither is given an operation: the old epoch has failed, or its
// program waits in the call that makes the new one.
//
// Thread rules: any thread, one at a time.
#pragma once

#include <cstdint>
#include <span>

#include "rank/driver.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

struct Estate {
  bool quiet = false;  // no operation, and no device of this rank, comes to memory of the epoch any more
  collective::LibraryEstate library;
  uint64_t ring = 0, ring_room = 0;  // the ring that devices of other ranks know, with the receive slots behind it; 0: none
};

struct Borrowed {
  bool library = false, ring = false;
};

class Succession {
 public:
  Succession(RankCore &core, Collectives &collectives, Messages &messages, RankDriver &driver) noexcept
      : core_(core), collectives_(collectives), messages_(messages), driver_(driver) {}

  // Waits until `until_ns` for operations that are still to end.
  Estate estate(int64_t until_ns) noexcept;
  bool await_quiet(int64_t until_ns) noexcept;  // false: operations have not ended
  // Whether no other rank comes to this rank's ring any more. `quiet`: by rank, whether it has said that it is quiet. Waits until `until_ns` to hear
  // that the other ranks are gone or have left: this rank may know that they are out from a rank that has heard it before.
  bool ring_is_free(std::span<const bool> quiet, int64_t until_ns) const noexcept;

  // The ranks have agreed that what is left of this epoch is the next one.
  void shrink() noexcept { shrinks_ = true; }
  bool shrinks() const noexcept { return shrinks_; }
  // All ranks that go on have the next epoch, in the place of this one. So that this rank leaves is in no haste (Departure).
  void go_over() noexcept { gone_over_ = true; }
  bool gone_over() const noexcept { return gone_over_; }

  void borrowed(Borrowed what) noexcept { borrowed_ = what; }
  void keep(Succession &before) noexcept;
  void give_back() noexcept;
  void give_back_ring() noexcept;

 private:
  bool comes_no_more(int rank) const noexcept;  // to this rank's ring
  void let_go(Borrowed what) noexcept;
  RankCore &core_;
  Collectives &collectives_;
  Messages &messages_;
  RankDriver &driver_;
  Borrowed borrowed_;
  bool shrinks_ = false, gone_over_ = false;
};

}  // namespace isthmus::rank
