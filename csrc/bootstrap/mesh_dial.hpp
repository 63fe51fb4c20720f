// The dialling side of a new connection between two processes: mesh.hpp says which of the two dials.
//
//   dialer                                     the process that is dialled
//     connects: Unix socket, else TCP  ------>   gate: both prove the job key (net/handshake.hpp)
//     Intro + memfd of the arena       ------>   maps the dialer's arena, reads the nonce in it
//                                      <------   Attach + memfd, the nonce as it was read
//     maps the peer's arena, reads the nonce
//     Ready, the nonce as it was read  ------>   the connection has arrived
//
// Over TCP no arena is passed, and the Intro ends the greeting.
#pragma once

#include <span>
#include <vector>

#include "bootstrap/arena_offer.hpp"
#include "bootstrap/mesh.hpp"
#include "net/connect_race.hpp"
#include "net/frame.hpp"
#include "net/handshake.hpp"

namespace isthmus::bootstrap {

// A control connection that is through the handshake and the greeting. connect() is to claim the connection.
struct Arrival {
  UniqueFd fd;
  Endpoint endpoint;
  bool local = false;
  PeerArena arena;
  net::FrameReader reader;  // may already hold messages
  Bytes16 token{};          // of the pair of processes
};

// A data connection, and the address at which it was made.
struct DialedStream {
  UniqueFd fd;
  net::Address address;
};

// The data connections of two processes.
struct DataPlan {
  int streams = 1;
  bool all_ways = false;  // over as many of the peer's addresses as answer; else all to the first that does
  bool at_once = false;   // dialed side by side: each dialogue is some four times the way
};

// Which of the streams between two processes a connection is.
struct StreamNumber {
  uint32_t index = 0, count = 0;
  uint32_t generation = 0;  // the stream's first connection is 0
};

// Those of the endpoint's addresses that mean something here: the scope of a link-local one may be no interface of this host.
std::vector<net::Address> addresses_of(const Endpoint &e);

// Any thread, several at once. `self` and `arena` are this process's, and outlive the dialer.
class Dialer {
 public:
  // `congestion`: of data connections (ISTHMUS_TCP_CONGESTION). Throws Error(Config) where this process cannot have it.
  Dialer(const Endpoint &self, const ArenaOffer &arena, std::string congestion);
  // Dials again until the deadline, while the peer may still come. Throws Error(Timeout), Error(Auth) where the peer refuses the key for
  // long, Error(PeerLost) where nobody listens at the endpoint any more. `look`: asked between two attempts.
  Arrival control(const Endpoint &e, const Bytes16 &key, Deadline deadline, const Look &look) const;
  // The data connections, in their order. Throws Error; `out` may be complete nevertheless, and then the peer has them.
  void data(const Peer &peer, const Bytes16 &key, const DataPlan &plan, Deadline deadline, const Look &look,
            std::vector<DialedStream> &out) const;
  // One data connection, by the first of the addresses that leads to the peer. False: none does, and `why` says so. Throws Error.
  bool stream(const Peer &peer, const Bytes16 &key, const std::vector<net::Address> &addresses, const StreamNumber &number,
              Deadline deadline, DialedStream &out, std::string &why) const;
  // For a data connection, dialed or accepted, before anything but its greeting goes by it.
  void prepare(int data) const;
  // A connection to the peer by the first of its addresses that leads there. `number`: of its control connections. Throws Error.
  UniqueFd control_again(const Endpoint &e, const Bytes16 &key, uint32_t number, Deadline deadline) const;
  bool gone(const Endpoint &e) const;  // nobody listens at the endpoint any more
  const char *why_gone(const Endpoint &e) const;
  // The endpoint is another host's, and only of loopback: this process cannot connect there. The peer may still connect to this process.
  bool out_of_reach(const Endpoint &e) const;

 private:
  // The next connection of the race that proves to be the endpoint's process. False: none is left. Throws Error where another process
  // answered, and none of the addresses was the endpoint's.
  bool connect_as(const Endpoint &e, net::ConnectRace &race, const Bytes16 &key, net::Hello hello, Deadline deadline,
                  UniqueFd &fd, size_t &which) const;
  // A data connection, dialed again until the deadline.
  DialedStream stream_to(const Peer &peer, const Bytes16 &key, std::span<const net::Address> addresses,
                         const StreamNumber &number, Deadline deadline, const Look &look) const;
  Arrival local(const Endpoint &e, const Bytes16 &key, UniqueFd fd, Deadline deadline) const;

  const Endpoint &self_;
  const ArenaOffer &arena_;
  const std::string congestion_;
};

}  // namespace isthmus::bootstrap
