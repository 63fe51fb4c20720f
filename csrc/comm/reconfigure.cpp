#include "comm/reconfigure.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "bootstrap/newcomers.hpp"
#include "comm/grow.hpp"

namespace isthmus::comm {
namespace {

// What a rank contributes to the first agreement; a rank that makes another call contributes something else.
constexpr uint64_t kReconfigures = 0x6973'7265'636f'6e00, kWorks = 1, kHasTicket = 2, kHasNone = 4;

std::string name_of(const Communicator &whole) {
  return formatted("reconfigure of '{}' on rank {}", whole.name(), own_slot(whole));
}

void check(Communicator &whole, const ReconfigureRequest &request) {
  if (group_open()) fail(Code::Argument, "reconfigure: not inside a group");
  if (std::find(request.excluded.begin(), request.excluded.end(), whole.rank()) != request.excluded.end())
    fail(Code::Argument, "reconfigure: rank {} is among those that are excluded", own_slot(whole));
  if (request.ticket.empty() != (request.newcomers == 0))
    fail(Code::Argument, "reconfigure: {} newcomers and {} ticket: give both or none", request.newcomers,
         request.ticket.empty() ? "no" : "a");
  if (request.ticket.empty()) return;
  bootstrap::parse_entry(request.ticket);
  if (request.newcomers < 1 || request.newcomers > bootstrap::kMostNewcomers)
    fail(Code::Argument, "reconfigure: {} newcomers: must be from 1 to {}", request.newcomers, bootstrap::kMostNewcomers);
}

// Whether ranks are out, or the communicator has failed on one of them: then those that are left make an epoch of their own first. All of them hear
// the same.
bool ranks_are_out(Communicator &whole, const ReconfigureRequest &request, const Asking &asking) {
  const uint64_t mine =
      kReconfigures | (whole.local().core().failed() ? 0 : kWorks) | (request.ticket.empty() ? kHasNone : kHasTicket);
  uint64_t flags = agree(whole.local(), mine, asking).flags;
  // As in a shrink: another rank may have heard of a failure in a call that ends with an agreement.
  while ((flags & kReconfigures) != kReconfigures && whole.local().core().failed() && !asking.deadline.passed())
    flags = agree(whole.local(), mine & ~kWorks, asking).flags;
  if ((flags & ~(kWorks | kHasTicket | kHasNone)) != kReconfigures) fail(Code::Aborted, "another rank made another call");
  if (!(flags & (kHasTicket | kHasNone)))
    fail(Code::Mismatch, "some ranks give a ticket and others none: give all ranks the same");
  const rank::RankSet members = whole.local().agreement().members();
  for (int r = 0; r < whole.size(); ++r)
    if (!members.has(r)) return true;
  return !(flags & kWorks);
}

}  // namespace

// The ranks agree on who is out. Where ranks are out, or the communicator has failed, what is left of it is the new epoch (shrink). Newcomers come
// in by one more (grow).
//
//   agree: who is out? --> nobody, and it works ----------------> grow --> the new epoch
//                     \--> some: shrink --> no newcomers ----------------> the new epoch
//                                      \--> grow what is left -----------> the new epoch
//
// A call that has failed behind the first agreement goes on where it stood: in the shrink, or with the last agreement of the grow. Whom the call
// names counts in each agreement.
Reconfigured reconfigure(Communicator &whole, const ReconfigureRequest &request) {
  check(whole, request);
  const double seconds = whole.timeout();
  const Deadline deadline(seconds);
  const AbortWatch watch(whole.local());
  rank::Succession &succession = whole.local().succession();
  if (!succession.await_quiet(deadline.ns()))
    fail(Code::Timeout, "{}: operations of it have not ended in time: wait for them before the call", name_of(whole));
  watch.look(name_of(whole));
  Reconfigured made;
  const GrowRequest grows{request.ticket, request.newcomers, request.slots,   whole.name(),
                          true,           request.excluded,  request.numbers, &watch};
  bool shrinks = false;
  try {
    if ((made.epoch = resume_grow(whole, grows))) {
      succession.go_over();
      made.epoch->set_timeout(seconds);
      return made;
    }
    shrinks = succession.shrinks() || unconfirmed(whole).of == Subject::Of::Shrink ||
              ranks_are_out(whole, request, {request.excluded, deadline, watch}) || request.ticket.empty();
  } catch (const Error &e) { throw Error(e.code(), formatted("{}: {}", name_of(whole), e.text()), e.ranks()); }
  if (shrinks) {
    succession.shrink();
    made.epoch = whole.shrink(request.excluded, Communicator::Shrink::Agree, whole.name(), request.numbers, &watch);
    succession.go_over();
    made.epoch->set_timeout(seconds);
    if (request.ticket.empty()) return made;
  }
  const std::shared_ptr<Communicator> left = made.epoch;
  Communicator &grown = left ? *left : whole;
  try {
    GrowRequest of_it = grows;
    of_it.agreed = true;
    if (left) of_it.suspects.clear();  // they are out, and other ranks have their numbers
    made.epoch = grow(grown, of_it);
    grown.local().succession().go_over();
  } catch (const Error &e) {
    if (!left) throw;
    if (const Status ended = watch.status(); !ended.ok()) left->abort("reconfigure: " + ended.text);
    made.newcomers = {e.code(),
                      formatted("{}; the communicator has gone over to the {} ranks that are left, and the call may "
                                "be made again for the newcomers alone",
                                e.text(), left->size()),
                      e.ranks()};
    return made;
  }
  made.epoch->set_timeout(seconds);
  if (left) left->destroy();
  return made;
}

}  // namespace isthmus::comm
