// Names of the floor below. This floor says these names most often.
#pragma once

#include "engine/device_health.hpp"
#include "engine/operation_text.hpp"
#include "engine/rank_core.hpp"

namespace isthmus::collective {

using engine::Answer;
using engine::Bounce;
using engine::Call;
using engine::Cell;
using engine::code_of;
using engine::Context;
using engine::describe;
using engine::Description;
using engine::DeviceHealth;
using engine::give_frame;
using engine::Mailbox;
using engine::Operation;
using engine::PeerRank;
using engine::Phase;
using engine::RankCore;
using engine::StagingBook;
using engine::SubmitLock;
using engine::take_frame;
using engine::Tell;

}  // namespace isthmus::collective
