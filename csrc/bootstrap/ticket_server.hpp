// Serves all tickets that this process made for one set of addresses: one thread, one set of listening sockets.
//
//   a client --gate: which ticket? does it hold the ticket's key?--> the ticket's gathering, which begins with its first client
//                                                              \--> told that the meeting is over, and how it ended
//
//           \--a ticket with a waiting room--> the room (waiting_room.hpp)
//
//   a connection to a library's own listener --the watch--> the gathering of the ticket: a rank that will not come
//
// The thread waits in one place, for all clients. So a client that says nothing, or reads nothing, holds up no other ticket's clients.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "bootstrap/elsewhere.hpp"
#include "bootstrap/gathering.hpp"
#include "bootstrap/listener_watch.hpp"
#include "bootstrap/ticket_book.hpp"
#include "bootstrap/ticket_wire.hpp"
#include "bootstrap/waiting_room.hpp"
#include "net/gate.hpp"

namespace isthmus::bootstrap {

class TicketServer {
 public:
  // Begins its thread, which lives as long as the process. Listeners for which a ticket has no room are closed. Throws
  // Error(Resource): there is no thread. Then it is destroyed; else it never is.
  explicit TicketServer(std::vector<UniqueFd> listeners);
  Ticket make();  // any thread
  // Any thread. A ticket with a waiting room, for processes that join a communicator which there is already.
  Ticket make_entry(const Bytes16 &job_key, int64_t until_ns);
  std::optional<uint64_t> number_of(const Ticket &ticket);  // any thread; empty: this server did not make the ticket
  WaitingRooms &rooms() noexcept { return rooms_; }
  // Any thread. Whose ticket it is: from now on who connects to that listening socket is no rank that will come to the ticket's meeting.
  // Empty: this server did not make the ticket.
  std::optional<Status> watch(const Ticket &ticket, int listener);

 private:
  // Hears that its meeting is over. What it sends is not looked at.
  struct LateClient {
    UniqueFd fd;
    net::ByteVector words;
    size_t sent = 0, heard = 0;
    int64_t until_ns = 0;
  };
  using Gatherings = std::map<uint64_t, Gathering>;

  void begin();
  void run() noexcept;
  void turn();
  void wait();
  void hear();
  void admit(net::Guest &&guest);
  void note_elsewhere(const WatchedListener &listener);
  void serve();
  bool serve(uint64_t number, Gathering &gathering);
  void note_over(uint64_t number, const Status &failure);
  Status meeting_over(const Status &how) const;
  void tell_late(UniqueFd fd, const Status &words);
  bool stays(LateClient &client);

  std::vector<net::Address> addresses_;
  std::string where_;
  net::Gate gate_;
  Guarded<TicketBook> book_;
  WaitingRooms rooms_;
  Gatherings going_;  // by the number of the ticket
  std::deque<LateClient> late_;
  ListenerWatch listeners_;                  // of the libraries for which the ids with the tickets are
  std::map<uint64_t, Elsewhere> elsewhere_;  // by the number of the ticket; at most kMostElsewhere
  std::vector<pollfd> fds_;  // of the gate, the listeners' watch, the rooms, all gatherings in their order, late clients
  std::thread thread_;
};

}  // namespace isthmus::bootstrap
