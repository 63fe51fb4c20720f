// Why a communicator has failed.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace isthmus::process {

// Whom a rank tells that its communicator has failed. A rank tells nobody where the other ranks know of the failure, or need not know.
enum class Tell : uint8_t { Peers, Nobody };

// The text may begin with the name of an operation. A rank that hears of the failure puts the name of its own operation there instead.
struct Failure : Status {
  Failure() = default;
  Failure(Status status) : Status(std::move(status)) {}  // NOLINT: a status is a failure of which no more is known
  std::string
      doing;  // what this rank was in, for a caller that hears of the failure without an operation of its own; not told to others
  uint32_t subject = 0;   // bytes of the name at the beginning of the text
  int32_t by = -1;        // the rank whose operation the name is of
  uint64_t sequence = 0;  // the number of that operation; 0: the operation is a message
  int32_t raiser = -1;    // the rank whose process ends by an error of its program, where that error is the reason
  bool late = false;      // an operation has met its deadline
  bool cut = false;  // rank `by` has lost the way to `ranks`, which may live. The text begins with who does not reach whom
  int64_t noted_ns = 0;
};

}  // namespace isthmus::process
