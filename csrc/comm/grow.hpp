// Communicators that gain ranks. See isthmus_comm_ticket() and the functions behind it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.hpp"

namespace isthmus::comm {

struct GrowRequest {
  std::string ticket;
  int newcomers = 1;
  std::vector<int> slots;  // of the newcomers; empty: see GrownRanks
  std::string name;
  bool ends = false;               // the communicator ends with the call, and leaves what it has to the new one
  std::vector<int> suspects = {};  // ranks without which this one goes on; then those that are left are to be shrunk first
  std::optional<Numbers> numbers = {};  // nothing: kept where there are holes, else dense
  const AbortWatch *watch = nullptr;    // of the call that this one is a part of. Null: an abort from now on ends this one
  bool agreed = false;                  // the ranks have just agreed that all of them are here, in this call
};

struct JoinRequest {
  std::string ticket;
  int slot = -1;  // the rank that this process wants to be; -1: any
  Settings settings;
};

std::string make_ticket(const Communicator &comm, double seconds);
int joiners(const std::string &ticket);
std::shared_ptr<Communicator> grow(Communicator &whole, const GrowRequest &request);  // collective
// What the last shrink or grow of this rank was to make, where this rank has heard no answer whether all have it.
Subject unconfirmed(Communicator &whole);
// Where an earlier grow of this rank has heard no answer: brings its last agreement to an end, without the suspects. Null: nobody keeps what came of
// it, or there was none.
std::shared_ptr<Communicator> resume_grow(Communicator &whole, const GrowRequest &request);
std::shared_ptr<Communicator> join_by_ticket(const JoinRequest &request);  // in a process that comes with a ticket

}  // namespace isthmus::comm
