// What the bridge gives a door of NCCL or RCCL.
#pragma once

#include "front_door.hpp"
#include "routed_calls.hpp"

namespace isthmus::interpose {

struct Calls : Bridged, RoutedCalls {
  Result (*group_end)();            // ends the outermost group, where `pending` is not null
  void (*group_forget)();           // likewise, where nothing of the group is to be done
  Comm (*behind)(Comm);             // the vendor's handle behind an alias of ours; null: there is none
  const char *(*last_error)(Comm);  // why a communicator of ours failed; null: it has not failed
};

}  // namespace isthmus::interpose
