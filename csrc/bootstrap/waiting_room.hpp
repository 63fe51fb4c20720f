// The processes that have come with tickets and wait to be let into a communicator. A room for each ticket.
//
//   thread of the tickets: admit() -- Enter read: it counts as waiting --+
//                                                                         > take(): a member's thread has them, and the room is over
//   member's thread: take() waits until enough have come ----------------/
//
//   A room is open until its time is over or until somebody has taken from it. Of rooms that are over it is known why, so who comes late is told.
//
// Thread rules: admit(), watch(), hear() and wakes_ns() are for the thread of the tickets; the rest for any thread.
#pragma once

#include <poll.h>

#include <deque>
#include <map>
#include <span>
#include <vector>

#include "base/lock.hpp"
#include "bootstrap/newcomers.hpp"
#include "net/gate.hpp"

namespace isthmus::bootstrap {

class WaitingRooms {
 public:
  static constexpr size_t kMostOpen = 256;    // rooms of one process
  static constexpr size_t kMostOver = 1024;   // of which it is known why they are over
  static constexpr size_t kMostComing = 256;  // of one room, with those that have not said Enter yet

  // Throws Error(Resource): so many are open.
  void open(uint64_t number, const Bytes16 &job_key, int64_t until_ns);
  std::optional<Bytes16> job_key(uint64_t number);  // empty: the ticket has no room
  size_t waiting(uint64_t number);
  std::vector<Newcomer> take(uint64_t number, const std::vector<int> &slots, Deadline deadline, const Look &look);

  // Not OK: it is told so, and let go.
  Status admit(uint64_t number, net::Guest &guest);
  void watch(std::vector<pollfd> &fds);
  size_t hear(
      std::span<const pollfd> fds);  // which begin with those that watch() has just appended; returns how many these are
  int64_t wakes_ns();

 private:
  struct Coming {
    Newcomer one;
    bool entered = false;
    int64_t until_ns = 0;  // by which it must have said Enter
  };
  struct WaitingRoom {
    Bytes16 job_key{};
    int64_t until_ns = 0;
    Status over;  // OK: it is open
    std::map<uint64_t, Coming> coming;
  };
  void look_at_clock() ISTHMUS_REQUIRES(mutex_);
  void end(WaitingRoom &room, Status why) ISTHMUS_REQUIRES(mutex_);
  bool stays(WaitingRoom &room, Coming &c) ISTHMUS_REQUIRES(mutex_);
  bool seat(WaitingRoom &room, const std::vector<int> &slots) ISTHMUS_REQUIRES(mutex_);

  Mutex mutex_;  // held over reads and sends that do not wait
  Condition changed_;
  std::map<uint64_t, WaitingRoom> rooms_ ISTHMUS_GUARDED_BY(mutex_);
  uint64_t came_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  std::vector<std::pair<uint64_t, uint64_t>>
      watched_;  // room and process, in the order of watch(); the thread of the tickets
};

}  // namespace isthmus::bootstrap
