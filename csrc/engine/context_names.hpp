// Names of the floor below. The engine says these names most often.
#pragma once

#include "process/context.hpp"
#include "process/processors.hpp"

namespace isthmus::engine {

using process::Answer;
using process::Context;
using process::Control;
using process::CreditBody;
using process::Failure;
using process::LeaveBody;
using process::Leaving;
using process::Links;
using process::LookAt;
using process::OutOfBandHead;
using process::StagingBook;
using process::Tell;

}  // namespace isthmus::engine
