// Operations that are done on all ranks or on none. See isthmus_call.commit.
#pragma once

#include "base/error.hpp"
#include "engine/operation.hpp"

namespace isthmus::comm {

class Communicator;

// Runs an operation that keeps its output, and waits for it. OK: it is done on all ranks. Else it is done on none that lives, as far as this rank
// can know, and the communicator has failed. Threads of one rank have one at a time, the others wait.
Status commit(Communicator &whole, engine::Operation &op);

}  // namespace isthmus::comm
