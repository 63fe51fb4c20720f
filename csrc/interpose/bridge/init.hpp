// One rank on its way into a communicator, by any call that a vendor has for the purpose.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "census.hpp"
#include "comm.hpp"
#include "face.hpp"

namespace isthmus::bridge {

// The steps of an init. In a group the steps are made when the group ends:
// 1. arrive(): the census of the ranks.
// 2. tell(): the log says what the census found.
// 3. make_real(), where one vendor's library can serve all ranks: the real library's call, as the program made it.
// 4. open() and start(), where the ranks span vendors: Isthmus makes the communicator.
class Init : public std::enable_shared_from_this<Init> {
 public:
  Init(Face &face, const char *name_of_call) noexcept : call(name_of_call), face_(face) {}
  virtual ~Init() = default;
  Init(const Init &) = delete;
  Init &operator=(const Init &) = delete;

  void expect(const Tail &tail, int rank, int world);  // what the census is about; before any step
  Result make();                                       // all steps, on this thread
  Result defer();                                      // until the group ends

  virtual Result arrive() = 0;
  void tell() const;
  virtual Result make_real() = 0;
  virtual Result open() { return kOk; }  // gives the program its handle, if the program gets one before start()
  virtual Result start() = 0;
  // Called in place of start(), after open(): there is no thread for start().
  virtual Result not_started(const std::string & /*why*/) { return kOk; }
  // Called after start(), where the group has failed and the vendor gives a program no handle of such a group.
  virtual void unmake() {}

  virtual Result promise() { return kOk; }         // in a group: gives the program a handle now, if the vendor does so
  virtual bool given_up() const { return false; }  // the program has aborted the promised communicator
  virtual void clear() noexcept = 0;               // the program has no handle yet

  // The name of the communicator: the program's, or one that is the same on all ranks.
  std::string full_name() const { return name.empty() ? name_of(arrival.tail.ticket) : name; }

  const char *const call;  // the name of the function
  std::string name;        // that the program asked for; empty: none
  DevicePlace place;
  CensusArrival arrival;
  bool started = false;

 protected:
  // Ends the meetings of further ids, to which no other rank comes.
  void end_meetings(const std::vector<isthmus_ticket> &tickets) const;

  Face &face_;
};

// Writes a ticket of a new meeting to the end of an id that the real library made. `what`: "unique id". `has_room`: the
// library leaves the end of the id alone. An id without a ticket is like an id made without Isthmus, and the log says why
// there is no ticket.
void add_ticket(Face &face, std::span<unsigned char> id, bool has_room, const char *what);
// No rank comes to the library for this id. Where this process has made the id, the library's listener for the id ends, and with the listener the
// thread that waits for the ranks.
void end_root(std::span<const unsigned char> id);

}  // namespace isthmus::bridge
