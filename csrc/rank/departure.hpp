// Departure is the local end of one rank in a communicator.
//
// 1. Pending operations have until a deadline. A receive for which nothing has come has a second. The rest fails.
// 2. The rank tells its peers that the rank leaves, and how.
// 3. The library's communicator ends, together with those of the island's other ranks.
// 4. Memory that peers may still read goes back to the arena later (RankTable::retire). By then each peer has ended the last operation, has left,
//    or is gone.
//
//   rank 0 (maker of the library's id)              rank 1
//   leave(): ends its operations
//   says Leave            ----------------------->  peer_left(): `left`
//   waits, at most 2 s, for the Leave of all
//                         <-----------------------  leave(): says Leave; waits, at most 2 s, for the question
//   all have left: says LibraryAsks  ------------>
//                         <-----------------------  says LibraryReady, and waits for the answer, for 10 s at least
//   all are: says LibraryEnds  ------------------>  ends its part of the library
//                         <-----------------------  says LibraryEnded
//   ends its part of the library
//   retire(): keeps mailbox and rings               retire()
//                                                   has ended the last operation, or has left
//   sweep(): frees them
//
// Who waits no longer says LibraryStays, and never ends its part after that; so says rank 0 to all where one has said so, is gone or is late. So no
// rank begins to end its part unless all do. Where one does not come to that end, rank 0 leaves its own part as it is.
//
// A rank that leaves broken first repeats to its peers why the communicator failed, so the reason comes before the Leave. After a failure no rank
// waits for another rank: the rank aborts its part of the library.
//
// Where the next epoch has taken the place of this one (`gone_over`) the peers have heard so. One of them may still wait for the last word of the
// agreement on it, from somebody who has ended, and has to hear that the others have left. So they say it, without haste: along with other messages.
//
// Thread rules: one thread, once.
#pragma once

#include "rank/driver.hpp"
#include "rank/names.hpp"

namespace isthmus::rank {

class Departure {
 public:
  Departure(RankCore &core, Collectives &collectives, Messages &messages, RankDriver &driver,
            uint64_t mailbox_offset) noexcept
      : core_(core), collectives_(collectives), messages_(messages), driver_(driver), mailbox_(mailbox_offset) {}
  void leave(int64_t until_ns, bool gone_over) noexcept;

 private:
  bool end_operations(int64_t until_ns, bool gone_over) noexcept;  // true: the rank leaves broken
  bool only_receives_wait() noexcept;
  void say(int rank, Leaving how, bootstrap::Goes goes = bootstrap::Goes::AtOnce) noexcept;
  void leave_devices(bool broken, int64_t until_ns) noexcept;
  // The library's communicator ends behind what was submitted. True: the device has run to the end of all.
  bool leave_library(std::unique_ptr<DeviceExecutor> executor, bool has_library, bool broken, int64_t until_ns) noexcept;
  // True: all ranks of the island end their parts, those that follow before the one that leads.
  bool leads_library_end() noexcept;
  bool follows_library_end(int leader, int64_t until_ns) noexcept;
  template <class Holds>
  bool of_all_others(Holds holds) const noexcept;  // of the island's ranks
  // At most so long, without the time in which the process was stopped.
  template <class Over>
  void wait_for(Over over, int64_t ns) noexcept;
  void retire() noexcept;

  RankCore &core_;
  Collectives &collectives_;
  Messages &messages_;
  RankDriver &driver_;
  const uint64_t mailbox_;
};

}  // namespace isthmus::rank
