// Processes that come with a ticket to join a communicator which there is already: the wait for its ranks, and the conversation afterwards.
//
//   newcomer                       the process that made the ticket
//     Enter: who, which slot  ->     its thread of tickets: the waiting room of the ticket
//                                    ... minutes later: a member's thread takes those that have come (Newcomers)
//                             <-     Welcome: rank and slot, of how many, how much time there is
//     Contribution            ->     each round of the exchange: passed on to the other members
//                             <-     Result for each rank
//     Made                    ->     this process has the communicator
//                             <-     Kept: all have it. Or Failure, at any time: nobody has it, and why
//
// Both ends prove the ticket's key and the job's (entry_key()). Parsers are bounded. Every wait has the deadline.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/handles.hpp"
#include "bootstrap/rendezvous.hpp"
#include "bootstrap/rendezvous_wire.hpp"
#include "bootstrap/ticket_wire.hpp"
#include "net/frame.hpp"

namespace isthmus::bootstrap {

inline constexpr int kAnySlot = -1;
inline constexpr int kMostNewcomers = 64;  // of one ticket

// The ticket as text: printable, without blanks. parse_entry() throws Error(Argument), Error(Mismatch) for another version.
std::string entry_text(const Ticket &ticket);
Ticket parse_entry(const std::string &text);
// What ISTHMUS_JOB_KEY says; zero where it is not set, and the ticket alone opens.
Bytes16 entry_job_key(const Settings &settings);
// What both ends prove.
Bytes16 entry_key(const Bytes16 &ticket, const Bytes16 &job);

// Makes a ticket with a waiting room, which is open for so many seconds. Throws Error(Resource): this process has too many open ones.
Ticket create_entry(const Settings &settings, double seconds);
bool made_here(const Ticket &ticket);  // by this process
size_t waiting(const Ticket &ticket);  // how many have come and wait; 0: none, or made elsewhere

struct Enter {
  int64_t pid = 0;
  int32_t slot = kAnySlot;
  std::string hostname;
};
struct Welcome {
  int32_t rank = 0, world = 0;
  int32_t slot = 0, slots = 0;  // the number for people, and how many there are: more than ranks, where numbers have gaps
  int64_t making_ns = 0, whole_ns = 0;  // the time for the making, and until all must have heard whether everybody has it
  std::string name, members;
};
void append_enter(net::ByteVector &out, const Enter &m);
std::optional<Enter> parse_enter(std::span<const std::byte> body);
void append_welcome(net::ByteVector &out, const Welcome &m);
std::optional<Welcome> parse_welcome(std::span<const std::byte> body);

// One process that waits, as the process sees it that made the ticket.
struct Newcomer {
  UniqueFd fd;
  net::FrameReader reader{kMaxRendezvousBody};
  Enter who;
  std::string from;     // its address
  int slot = kAnySlot;  // that it gets; kAnySlot while it waits
  std::string text() const {
    return formatted("the process that comes with the ticket (pid {} on {})", who.pid, who.hostname);
  }
};

// Those that one grow admits, in the order of their slots. One thread.
class Newcomers {
 public:
  // Waits until so many have come that each of the `slots` has its process. From then on the ticket is used. Who asks for a slot that is not
  // among them is refused, and the wait goes on. Throws Error(Argument): the ticket is used, has expired, or is not of this process.
  // Error(Timeout): too few have come. The ticket stays as it was.
  Newcomers(const Ticket &ticket, const std::vector<int> &slots, Deadline deadline, const Look &look);
  ~Newcomers();  // tells those that were not told how it ended
  Newcomers(const Newcomers &) = delete;
  Newcomers &operator=(const Newcomers &) = delete;

  // Each has its own rank, and its own slot, beside what is the same. `ranks`: theirs, ascending.
  void welcome(const Welcome &same, const std::vector<int> &ranks);
  std::vector<Blob> contributions(Deadline deadline, const Look &look);             // of the next round, in their order
  void results(const std::vector<Blob> &all, Deadline deadline, const Look &look);  // of this round, by rank
  void await_made(Deadline deadline, const Look &look);
  void kept() noexcept;
  void failed(const Status &why) noexcept;

 private:
  std::optional<Blob> answer(Newcomer &one, Meet wanted, Deadline deadline, const Look &look);
  std::vector<Newcomer> all_;
  uint32_t round_ = 0;
  bool told_ = false;
};

// The newcomer's side.
class Entry final : public Exchange {
 public:
  // Comes with the ticket and waits until it is let in. Throws Error(Auth), Error(Argument) (used, expired, a slot that lives),
  // Error(Timeout): no member has let it in. Error(PeerLost): the process that made the ticket has ended.
  Entry(const Ticket &ticket, const Settings &settings, int slot, Deadline deadline);
  const Welcome &welcome() const noexcept { return welcome_; }
  Deadline making() const noexcept { return making_; }
  Deadline whole() const noexcept { return whole_; }
  std::vector<Blob> all_gather(const Blob &mine, Deadline deadline) override;
  void look() override;  // whether the members have given up
  void say_made() noexcept;
  void say_failed(const Status &why) noexcept;  // this process does not have it
  // Looks for the last word, at most until then. True: all have it. Throws the Failure. Error(PeerLost): the other end is gone, unless
  // refused() says that this was its word.
  bool kept(Deadline until);
  bool refused() const noexcept { return refused_; }

 private:
  void connect(const Ticket &ticket, const Bytes16 &key, Deadline deadline);
  bool attempt(const Ticket &ticket, const Bytes16 &key, Deadline deadline, std::string &last, bool &refused);
  // The next message, which is of that type. False: it did not come in time.
  bool next(Meet wanted, std::span<const std::byte> &body, Deadline deadline);
  std::string where_;
  UniqueFd fd_;
  net::FrameReader reader_{kMaxRendezvousBody};
  Welcome welcome_;
  Deadline making_, whole_;
  uint32_t round_ = 0;
  bool refused_ = false;  // a Failure has come
};

}  // namespace isthmus::bootstrap
