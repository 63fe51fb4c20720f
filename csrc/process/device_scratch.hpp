// Blocks of a device's memory, in which operations keep intermediate results. A block is lent to one communicator at a time.
//
// A communicator has a block while one of its operations is in flight. Its operations use the block in the order of the stream. A block
// that one communicator has outgrown serves the others. All blocks go back to the device with the last communicator.
#pragma once

#include <cstddef>
#include <vector>

#include "base/lock.hpp"
#include "device/runtime.hpp"

namespace isthmus::process {

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

  // One communicator more will need a block of so many bytes. The block is allocated now, up to kReserved blocks in all: an allocation
  // while operations are in flight may wait for all work of the device. Throws what the runtime throws.
  void reserve(size_t bytes);
  static constexpr size_t kReserved = 8;
  // The smallest free block that is large enough, or a new one. A new block is of the next power of two, so all outgrown blocks together
  // are smaller than the last one. Where the device has not so much, it is as large as is asked for. Throws what the runtime throws.
  Block take(size_t bytes);
  void give(Block block) noexcept;  // no call of the runtime

 private:
  device::Runtime &runtime_;
  const int device_;
  Mutex mutex_;  // never held over a call of the runtime
  std::vector<Block> free_ ISTHMUS_GUARDED_BY(mutex_);
  size_t reserved_ ISTHMUS_GUARDED_BY(mutex_) = 0;
};

}  // namespace isthmus::process
