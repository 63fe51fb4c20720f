// Groups of calls, for every face: the calls that are put off until the outermost group ends, and what happens then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "init.hpp"

namespace isthmus::bridge {

// What a thread called between the outermost start of a group and its end.
struct PendingGroup {
  std::vector<std::shared_ptr<Init>> inits;
  BridgedCalls operations;
  // A call that is collective over a communicator, or (`parent` null) comes to the ranks of one. The call is made when the group
  // ends, on a thread that works on that device.
  struct Deferred {
    CommPtr parent;
    DevicePlace place;
    std::function<Result()> act;
  };
  std::vector<Deferred> deferred;
  Result failure = kOk;       // the first one
  const char *why = nullptr;  // the text of that failure; null: no program can ask for a text
};

// Ends the outermost group of this thread, in which something is pending.
Result end_group(Face &face);

}  // namespace isthmus::bridge
