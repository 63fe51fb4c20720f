// Connects to a process that has several addresses, of which some may lead nowhere. The addresses are tried side by side, the best first:
//
//   address 0   connect ............................ no answer
//   address 1        | 20 ms later: connect -- connected: next() returns this one
//
// So an address behind a firewall, or of a network that this host is not in, costs 20 ms. An address that refuses costs nothing.
#pragma once

#include <string>
#include <vector>

#include "net/socket.hpp"

namespace isthmus::net {

// One thread.
class ConnectRace {
 public:
  explicit ConnectRace(const std::vector<Address> &addresses);

  // The next connection that comes about, and the number of its address. A caller who finds that somebody else answers there calls again:
  // the other attempts have gone on. False: no attempt is left, or the deadline has passed. Throws Error(Interrupted), and Error(Resource) where
  // this process lacks descriptors for attempts for a second (net/shortage.hpp).
  bool next(Deadline deadline, UniqueFd &out, size_t &which);

  const Address &address(size_t which) const { return attempts_[which].address; }
  bool all_refused() const noexcept;  // also of no address at all
  // Nobody listens any more: all refuse, or one on another host refuses and the rest leads nowhere. An address of this host may be another
  // host's as well, and refuse in its place. A network may fail for a while, so ask twice.
  bool nobody_listens() const;
  std::string why() const;  // what became of the attempts that failed: "10.0.0.1:29500: Connection refused; ..."

 private:
  struct Attempt {
    Address address;
    UniqueFd fd{};  // while it goes on
    int error = 0;  // why it failed
    bool ended = false;
  };
  void begin_next();
  void end(Attempt &attempt, int error);

  std::vector<Attempt> attempts_;
  size_t begun_ = 0;  // the first so many were begun
  int64_t next_begins_ns_ = 0;
};

}  // namespace isthmus::net
