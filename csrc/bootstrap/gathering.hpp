// One rendezvous as its root sees it: the clients, the rounds, and how it ends. It never waits: the owner polls the clients, and says what
// came. So one thread may serve many gatherings.
//
//   client                                       root
//     Join                            ------>      the roster takes the rank
//     Contribution of round 0         ------>
//     (others: Join, Contribution)    ------>      the last one has come: round 0 is complete
//                                     <------      Result for each rank
//     Contribution of round 1         ------>      may come while a slow client still reads round 0
//
// The first failure ends all: the root sends one Failure to every client, also to those that arrive a little later.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/elsewhere.hpp"
#include "bootstrap/rendezvous_roster.hpp"
#include "net/gate.hpp"

namespace isthmus::bootstrap {

class Gathering {
 public:
  // `where`: the address as messages show it. `world` 0: the root stands for no rank, and the first client says how many there are. Else
  // the root stands for rank 0. `gate`: from which the clients come; messages name the clients that the gate refused meanwhile.
  Gathering(std::string where, int world, const net::Gate &gate);

  void admit(net::Guest &&guest);
  void watch(std::vector<pollfd> &fds) const;  // appends one for each client
  size_t hear(
      std::span<const pollfd> fds);  // which begin with those that watch() has just appended; returns how many these are
  std::vector<UniqueFd> untold();    // takes the connections of clients that have not heard how it ended

  // A root that stands for rank 0 goes through each round by these: begin(), until gathered(), distribute(), until flushed().
  void begin() noexcept;
  bool gathered();                                 // all ranks have contributed. May find that a rank is lost
  std::vector<Blob> distribute(const Blob *mine);  // the blobs by rank, which are also sent to the clients
  bool flushed() const;
  void time_out(double seconds,
                const Status &own);  // the round has failed: it took so long, perhaps for what has failed in this rank
  const Status &failure() const noexcept { return failure_; }
  // After a failure. False while there is somebody to be told. `deadline`: how long ranks are waited for that are still to come; a root
  // that stands for no rank does not wait, because somebody else tells them.
  bool tell_failure(Deadline deadline);

  // A root that stands for no rank calls this alone, after hear() and admit() and at wakes_ns(): it does what there is to do. True: all
  // is over, because all ranks came and left, or because the failure is told.
  bool serve();
  int64_t wakes_ns() const noexcept;
  // What is known of ranks that went elsewhere. A root that stands for no rank does not wait for them.
  void note(const Elsewhere &elsewhere) { elsewhere_ = elsewhere; }

 private:
  enum class Ending { NotYet, Latecomers, Flushing, Closing };

  void set_failure(Code code, std::string text);
  void tell_who_is_missing() const;
  std::string missing_text(double seconds) const;
  void flush(RootClient &c);
  void tell(RootClient &c);
  void lost(RootClient &c);
  void joined(RootClient &c);
  void on_frame(RootClient &c, uint16_t type, std::span<const std::byte> body);
  void malformed(RootClient &c, const std::string &what);
  void read(RootClient &c);

  const std::string where_;
  const net::Gate &gate_;
  const uint64_t refused_before_;
  Roster roster_;
  std::vector<std::unique_ptr<RootClient>> clients_;
  uint32_t round_ = 0;
  bool wanted_ = false;  // one of the ranks has contributed to this round
  int64_t start_ns_ = 0;
  int64_t came_ns_ = 0;  // when the newest rank came
  Elsewhere elsewhere_;
  RoundPatience patience_;
  bool distributing_ = false;  // the results of round round_ - 1
  Status failure_;
  Ending ending_ = Ending::NotYet;
  int64_t ending_until_ns_ = 0;  // of this step of the ending
};

}  // namespace isthmus::bootstrap
