// Pinned memory for plain host memory of the user's that is given to a rank whose library works on its device: a processor copies it there,
// the device takes it from there to its own memory and brings back what comes out, and a processor copies that to the user. What is short
// goes whole, what is long in pieces that take turns in a ring, so that processor and device copy at one time and what is pinned is bounded.
// The ring is of the staging memory where there is room, and else a small buffer of its own, which is kept for the next one.
//
// Pieces are numbered: first those that go in, then those that come out, each `piece` bytes of what the blocks reach over. One counter of the
// operation says how far the device has copied them, one door how far it may (HostDoors).
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
  ~Bounces();  // what is still taken, and what the driver does not let go of, stays as it is

  // Error(Resource) where not even a small buffer can be pinned. A call of the driver where it needs one, which makes itself heard once.
  Bounce take(uint64_t in, uint64_t out);
  void give(const Bounce &bounce) noexcept;  // by any thread; no call of the driver
  void lose(const Bounce &bounce) noexcept;  // the device may still come to it: it is nobody's any more

 private:
  struct Buffer {
    std::byte *host;
    bool free;
  };
  bool release(const Buffer &buffer) noexcept;
  std::byte *buffer();

  link::Arena &arena_;
  std::byte *const arena_device_;
  device::Runtime &runtime_;
  const int device_;
  const std::string name_;
  Mutex mutex_;
  std::vector<Buffer> buffers_ ISTHMUS_GUARDED_BY(mutex_);
  bool said_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::collective
