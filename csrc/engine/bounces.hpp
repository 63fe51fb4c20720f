// Pinned memory for host memory of the user's that is given to a rank whose library works on its device: it is copied there by the caller, from
// there to the device and back, and out to the user at the operation's end. It lies in the staging memory where there is room, and else
// in a buffer of its own, which is kept for the next one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/runtime.hpp"
#include "link/arena.hpp"

namespace isthmus::engine {

struct Bounce {
  std::byte *host = nullptr;    // null: none
  std::byte *device = nullptr;  // the same bytes, as the device reaches them
  uint64_t out = 0;             // where what comes out begins
  uint64_t staging = 0;         // its offset in the arena; 0: a buffer of its own
  explicit operator bool() const noexcept { return host != nullptr; }
};

class Bounces {
 public:
  // `arena_device`: where the device reaches the arena's first byte.
  Bounces(link::Arena &arena, std::byte *arena_device, device::Runtime &runtime, int device, std::string name)
      : arena_(arena), arena_device_(arena_device), runtime_(runtime), device_(device), name_(std::move(name)) {}
  ~Bounces();  // what is still taken, and what the driver does not let go of, stays as it is

  // Error(Resource) where so much can be pinned nowhere. A call of the driver where it needs a buffer of its own, which makes itself heard once.
  Bounce take(uint64_t in, uint64_t out);
  void give(const Bounce &bounce) noexcept;  // by any thread; no call of the driver
  void lose(const Bounce &bounce) noexcept;  // the device may still come to it: it is nobody's any more

 private:
  struct Buffer {
    std::byte *host;
    size_t bytes;
    bool free;
  };
  bool release(const Buffer &buffer) noexcept;

  link::Arena &arena_;
  std::byte *const arena_device_;
  device::Runtime &runtime_;
  const int device_;
  const std::string name_;
  std::mutex mutex_;  // guards what follows
  std::vector<Buffer> buffers_;
  bool said_ = false;
};

}  // namespace isthmus::engine
