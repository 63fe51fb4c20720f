// Memory for measurements on a device.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <memory>

#include "device/runtime.hpp"

namespace isthmus::observe {

inline constexpr double kPatience = 30;  // seconds that a device may take for one step

// Waits until `stream` has come to the event. Throws what went wrong on the stream. Error(Timeout): nothing happens.
void wait(device::Event &event, const device::Stream &stream);

// Memory of the device and pinned memory of the host, with two lanes: a stream and an event each. Memory on which the device may still work is
// never given back.
class Buffers {
 public:
  Buffers(device::Runtime &runtime, int device, size_t size);  // of `size` bytes each; on the host all are 1
  ~Buffers() { end(); }
  Buffers(const Buffers &) = delete;
  Buffers &operator=(const Buffers &) = delete;

  void submit(int lane, void *to, const void *from);  // a copy of all bytes
  void finish(int lane);                              // waits for the copies that the lane was given
  void lose() noexcept { lost_ = true; }              // the device may still work on the memory

  const size_t bytes;
  std::unique_ptr<device::Stream> streams[2];
  std::unique_ptr<device::Event> events[2];
  void *there[2] = {};      // on the device
  std::byte *here[2] = {};  // on the host
  void *pinned[2] = {};     // the host's, as the device finds it

 private:
  void end() noexcept;
  device::Runtime &runtime_;
  const int device_;
  void *page_ = MAP_FAILED;
  bool registered_ = false, lost_ = false;
};

}  // namespace isthmus::observe
