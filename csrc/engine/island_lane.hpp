// How messages of one rank are given to the vendor's library that serves the rank. The collectives of the rank have the library's communicator and its
// stream; the messages know no more of both than this.
//
// Thread rules: exchange() and carries() with the collective lock (RankCore). sound() with the right to execute. The rest any
// thread.
#pragma once

#include <cstdint>
#include <span>

#include "engine/operation.hpp"

namespace isthmus::engine {

class IslandLane {
 public:
  virtual bool carries() const noexcept = 0;         // the library can be given messages of device memory
  virtual bool serves(int rank) const noexcept = 0;  // the library serves that other rank too
  virtual bool takes_several() const noexcept = 0;   // a group may have several messages each way with a rank
  // Gives the messages to the library as one group, behind what their streams hold and before what these get later. Throws what the library and
  // the runtime throw. exchanged() comes to `ticket` when all have ended, and also after a throw, once nothing of them is on the stream.
  virtual void exchange(std::span<Operation *const> messages, uint64_t ticket) = 0;
  virtual uint64_t exchanged() const noexcept = 0;
  // False: the library has failed, and so has the communicator, at the message `op`.
  virtual bool sound(const Operation &op) noexcept = 0;

 protected:
  ~IslandLane() = default;
};

}  // namespace isthmus::engine
