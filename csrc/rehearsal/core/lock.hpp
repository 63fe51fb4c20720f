// The locks of base/lock.hpp, whose use the compiler checks, in the namespace of the rehearsal.
#pragma once

#include "base/lock.hpp"

namespace rehearsal {

using isthmus::Condition;
using isthmus::Guarded;
using isthmus::Lock;
using isthmus::Mutex;
using isthmus::SharedLock;
using isthmus::SharedMutex;

}  // namespace rehearsal
