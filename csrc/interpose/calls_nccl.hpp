// What the bridge gives a door of NCCL or RCCL.
#pragma once

#include "front_door.hpp"
#include "routed_calls.hpp"

namespace isthmus::interpose {

struct Calls : Bridged, RoutedCalls {
  Result (*group_end)();            // of the outermost group, where `pending` is not null
  void (*group_forget)();           // likewise, where nothing of it is to be done
  Comm (*behind)(Comm);             // the vendor's handle that one of ours stands for; null: none
  const char *(*last_error)(Comm);  // why a communicator of ours failed; null: it did not
  bool (*named)(Comm);              // whether one of ours stands for this one of the vendor's
};

}  // namespace isthmus::interpose
