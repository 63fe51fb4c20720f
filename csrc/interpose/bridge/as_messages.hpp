// Exchanges of blocks as sends and receives.
//
// NCCL has no call for blocks of different sizes, and older versions have none for blocks at all. So one program calls
// ncclAllToAll, and the next makes a group of sends and receives of the same exchange. Which form a program uses hangs on its
// version and on its vendor: a ROCm build of PyTorch makes the call, a CUDA build makes the group. The two must meet:
//
//   rank 0, CUDA build   GroupStart  Send(0) Recv(0) Send(1) Recv(1)  GroupEnd
//   rank 1, ROCm build   AllToAllv   --> the same four messages
//
// So all four exchanges (all-to-all in both forms, gather, scatter) go as messages, on all ranks of a communicator that has a
// rank of NCCL's or RCCL's. These libraries, too, make a group of messages of each exchange.
#pragma once

#include <vector>

#include "comm.hpp"

namespace isthmus::bridge {

bool exchanges_blocks(OperationKind kind) noexcept;

// The messages that rank `rank` of `size` ranks sends and receives in the exchange. The messages are called together, in any
// order: between two ranks there is one each way. A block without elements makes no message. A block that lies where it goes
// makes none either. `call`: the name of the function, for errors. Fails with ISTHMUS_ERR_ARGUMENT where the exchange is in
// place and the messages would overwrite blocks that are still to be sent, and where a size does not fit into 64 bits.
Outcome as_messages(const BridgedCall &exchange, const char *call, int rank, int size, std::vector<BridgedCall> &messages);

}  // namespace isthmus::bridge
