// What the bridge gives a door of HCCL.
#pragma once

#include "front_door.hpp"
#include "routed_calls_hccl.hpp"

namespace isthmus::interpose::hccl {

struct Calls : Bridged, RoutedCalls {
  Result (*group_end)();  // ends the outermost group, where `pending` is not null
};

}  // namespace isthmus::interpose::hccl
