// Memory on a device for what operations keep there on their way, lent to one communicator at a time: it has a block while it has an operation in
// flight, and its operations use it in the order of the stream. What is outgrown serves others, and all of it is given back to the device
// with the last communicator.
#pragma once

#include <cstddef>
#include <vector>

#include "base/lock.hpp"
#include "device/runtime.hpp"

namespace isthmus::engine {

class DeviceScratch {
 public:
  struct Block {
    void *memory = nullptr;  // null: none
    size_t bytes = 0;
  };

  DeviceScratch(device::Runtime &runtime, int device) : runtime_(runtime), device_(device) {}
  ~DeviceScratch();
  DeviceScratch(const DeviceScratch &) = delete;
  DeviceScratch &operator=(const DeviceScratch &) = delete;

  // One communicator more will need a block of so many bytes, which is allocated now, up to kReserved of them: whoever allocates while
  // operations are in flight may wait for all that the device has to do. Throws what the runtime throws, as does take().
  void reserve(size_t bytes);
  static constexpr size_t kReserved = 8;
  // The smallest that is free and large enough, or a new one: of the next power of two, so that all that are ever outgrown are
  // smaller than the last.
  Block take(size_t bytes);
  void give(Block block) noexcept;  // no call of the runtime

 private:
  device::Runtime &runtime_;
  const int device_;
  Mutex mutex_;  // never held over a call of the runtime
  std::vector<Block> free_ ISTHMUS_GUARDED_BY(mutex_);
  size_t reserved_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace isthmus::engine
