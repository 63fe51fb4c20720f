// The communicator's side of the thread that makes its calls (hccl_rank.hpp is the thread's side). One thread at a time uses an HcclThread.
//
//   communicator's caller                      thread of the communicator
//     ask(): writes the task, asked = n
//            rings `work`             ------>   wakes, or sees `asked` while still spinning
//     waits: spins, then naps on `back`         the library's call, with `calling` held
//                                     <------   done = n, rings `back`
//     goes on
//
//     abort() of another thread sets `aborted` and rings `back`: the caller goes on at once, without the call.
//     The thread stays in the library until the call comes back, because no call of the library ends another.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>

#include "ccl/hccl_rank.hpp"
#include "ccl/island_ccl.hpp"

namespace isthmus::ccl::hccl {

inline constexpr double kBrokenPatience = 2;  // seconds, for a communicator that has failed or was aborted

class HcclThread {
 public:
  explicit HcclThread(std::shared_ptr<HcclRank> rank);  // begins the thread
  // The thread makes the call. True: the call has been made when ask() returns. False: nobody waits for the call any more, and the rank counts as
  // aborted. `join`: of a call of init, which ends the wait where other ranks cannot come.
  bool ask(const Task &t, int64_t until_ns, const IslandJoin *join = nullptr);
  // Ends the library's communicator and the thread, in four steps:
  //   1. A call that nobody waits for any more gets `patience` seconds to come back. Only then is it known what there is to end.
  //   2. The stream gets time to do what was submitted. The library's communicator may end when all its work is done. A failed call may have
  //      left the communicator so, and so does the engine when the engine stops the stream.
  //   3. The thread ends the library's communicator, with a deadline. The library waits for no other rank there, but a device that hangs
  //      may hold up this call as well.
  //   4. The thread is told to stop. A thread that does not come out is left behind, counted and named.
  // Other communicators' work stands on the stream, too. Where step 2 is in vain, the library's communicator is left as it is.
  void leave(double patience) noexcept;

 private:
  // Waits so long until all that the stream was given is done. Returns whether it is. The calls that ask may stand for as long as another
  // thread has the driver locked. So they are made on a thread of their own. The thread is left behind where a call stands beyond that time, and
  // the device then counts as stuck. Of a device that is stuck already nothing is asked.
  bool idle(double seconds) const noexcept;
  void abandon() noexcept;

  const std::shared_ptr<HcclRank> rank_;
  std::thread thread_;
};

}  // namespace isthmus::ccl::hccl
