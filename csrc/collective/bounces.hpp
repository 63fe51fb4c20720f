// Bounces has the pinned memory for plain host memory of the user's. Such memory may be given to a rank whose library works on the rank's
// device.
//
//   1. A processor copies the user's memory to pinned memory.
//   2. The device copies pinned memory to its own memory, works, and copies the result back to pinned memory.
//   3. A processor copies the result to the user's memory.
//
// Short memory goes whole. Long memory goes in pieces that take turns in a ring. So processor and device copy at one time, and the pinned memory
// is bounded. The ring is of the staging memory where there is room. Else the ring is a small buffer of its own, which is kept for the next
// operation.
//
//   processor                               device
//   fills piece 0, piece 1
//                                           copies piece 0; signal `copied`: below 1
//   has_copied(1): fills piece 2 in the
//   place of piece 0
//   door `pieces`: below 3      -------->   may copy piece 2
//
// Pieces are numbered: first the pieces that go in, then the pieces that come out. A piece is `piece` bytes of the range over which the blocks
// reach. The signal `copied` says how far the device has copied the pieces (DeviceSignals). The door `pieces` says how far the device may
// (HostDoors).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "device/runtime.hpp"
#include "collective/engine_names.hpp"
#include "link/arena.hpp"

namespace isthmus::collective {

class Bounces {
 public:
  // `arena_device`: where the device reaches the arena's first byte.
  Bounces(link::Arena &arena, std::byte *arena_device, device::Runtime &runtime, int device, std::string name)
      : arena_(arena), arena_device_(arena_device), runtime_(runtime), device_(device), name_(std::move(name)) {}
  ~Bounces();  // memory that is still taken, or that the driver does not let go, stays as it is

  // Error(Resource) where not even a small buffer can be pinned. A new buffer needs a call of the driver, and the log names the first one.
  Bounce take(uint64_t input, uint64_t output);
  void give(const Bounce &bounce) noexcept;  // by any thread; no call of the driver
  void lose(
      const Bounce &bounce) noexcept;  // the device may still come to the memory: no operation gets the memory any more

 private:
  struct PinnedBuffer {
    std::byte *host;
    bool free;
  };
  bool release(const PinnedBuffer &buffer) noexcept;
  std::byte *buffer();

  link::Arena &arena_;
  std::byte *const arena_device_;
  device::Runtime &runtime_;
  const int device_;
  const std::string name_;
  Mutex mutex_;
  std::vector<PinnedBuffer> buffers_ ISTHMUS_GUARDED_BY(mutex_);
  bool said_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::collective
