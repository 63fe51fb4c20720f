// Names of the floor below. This floor says these names most often.
#pragma once

#include "engine/rank_core.hpp"

namespace isthmus::messages {

using engine::Context;
using engine::finish_operation;
using engine::give_frame;
using engine::Operation;
using engine::OperationPool;
using engine::PeerRank;
using engine::Port;
using engine::RankCore;
using engine::StreamMark;
using engine::SubmitLock;
using engine::take_frame;
using engine::Tell;

}  // namespace isthmus::messages
