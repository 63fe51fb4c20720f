// Names of the floors below. This floor says these names most often.
#pragma once

#include "collective/collectives.hpp"
#include "engine/completions.hpp"
#include "engine/operation_text.hpp"
#include "engine/rank_core.hpp"
#include "messages/messages.hpp"

namespace isthmus::rank {

using collective::Collectives;
using collective::DeviceExecutor;
using collective::DeviceExecutorSetup;
using collective::DeviceSide;
using collective::Outcome;
using engine::Answer;
using engine::Awaited;
using engine::Completions;
using engine::Context;
using engine::Control;
using engine::describe;
using engine::DeviceHealth;
using engine::DeviceStreams;
using engine::Failure;
using engine::Identity;
using engine::Lateness;
using engine::LeaveBody;
using engine::Leaving;
using engine::LookAt;
using engine::Mailbox;
using engine::message_text;
using engine::Operation;
using engine::OperationPool;
using engine::OperationSink;
using engine::OutOfBandHead;
using engine::PeerRank;
using engine::Phase;
using engine::RankCore;
using engine::RankDevice;
using engine::Tell;
using messages::DeviceCopier;
using messages::MatchState;
using messages::Messages;
using messages::on_stage;
using messages::OperationList;
using messages::StreamOrder;

}  // namespace isthmus::rank
