// The house's locks, whose use the compiler checks, under the rehearsal's name. base/lock.hpp says how they are used.
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
