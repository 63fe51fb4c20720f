// Whose memory a call's buffers are: the host's, this rank's device's, or pinned memory of the host that the device reaches.
#pragma once

#include "engine/operation.hpp"
#include "rank/rank.hpp"

namespace isthmus::comm {

class BufferMemory {
 public:
  explicit BufferMemory(rank::Rank &local) noexcept : local_(local) {}

  // For `memory` (or nothing yet) of a device that DLPack calls by that type and number. Throws where this rank does not work on that device:
  // Error(Unsupported) on a rank of the host, Error(Argument) elsewhere. The text says what this rank works on.
  void check_lent(int type, int number, const void *memory) const;
  // Whether the buffers are memory of this rank's device. Error(Argument): they are another device's, or only one buffer is the device's.
  // `claims`: CallRequest::device_memory. Pinned memory: call.input_there and call.output_there become the addresses by which the device finds the bytes.
  bool on_device(const char *name, const void *input, const void *output, int claims, engine::Call &call) const;
  // Error(Argument) where the caller says that memory is the device's and the runtime does not know it. on_device() has not taken it.
  void check_claim(const char *name, const char *argument, const void *memory) const;
  // For a call with pinned memory that the device reaches, whose plan is made: decides whether device or processors work on the memory. True:
  // the plan was made for memory of the host, and the device works on it now. The caller makes the plan of a device's memory.
  //
  // The first byte of what a call gives has been looked at, and the last one decides: programs pin whole buffers. Where a library serves the
  // rank, or the other buffer is the device's, the device works on it; else processors do, without a copy.
  bool take_pinned(const char *name, bool sends, bool receives, engine::Operation &op) const;

 private:
  rank::Rank &local_;
};

}  // namespace isthmus::comm
