// Calls on a communicator with holes: from slots, in which the caller counts, to ranks.
#pragma once

#include "comm/call_request.hpp"
#include "comm/numbering.hpp"

namespace isthmus::comm {

// The request with the root or peer as a rank. Of a v-collective the lists have an entry for each rank, and always displacements. Displacements
// that the caller left out are back to back over all slots: the count of a hole says how much room its block has, which nobody touches. Where
// displacements are given, those of a hole are not looked at, nor is its count.
//
// The lists are the thread's, until its next such call. Error(Argument): the root or peer is a hole, or counts add up to too much.
CallRequest in_ranks(const CallRequest &request, const Numbering &numbering);

}  // namespace isthmus::comm
