// The devices of a vendor, as far as the bridge itself uses them: on which device a thread works, streams and their order.
// Isthmus' library does the rest.
#pragma once

#include <cstddef>

#include "outcome.hpp"

namespace isthmus::bridge {

// The device that a thread works on.
struct DevicePlace {
  int device = 0;
  void *context = nullptr;  // the vendor's context, where the vendor has such
};

class Devices {
 public:
  virtual ~Devices() = default;
  virtual Outcome current(DevicePlace &place) = 0;            // of the calling thread
  virtual void enter(const DevicePlace &place) noexcept = 0;  // the calling thread works there from now on
  // Waits until the stream has done all the work that it holds. Refused while the stream is being captured into a graph.
  virtual Outcome wait(void *stream) = 0;
  // Copies a few bytes of device memory, as the bytes are when the stream has come so far. Waits for the stream.
  virtual Outcome read(void *to, const void *from, size_t bytes, void *stream) = 0;

  // Whether this handle means another stream on each thread (CUDA's and HIP's per-thread default stream).
  virtual bool of_thread(void *) const noexcept { return false; }
  // The functions below are called only where there is such a handle.
  // Makes a stream of the bridge's own, on the current device.
  virtual Outcome make_stream(void **) { return {ISTHMUS_ERR_INTERNAL, "there is no need for a stream"}; }
  // The work that `behind` is given from now on waits for the work that `ahead` holds now.
  virtual Outcome order(void * /*ahead*/, void * /*behind*/) {
    return {ISTHMUS_ERR_INTERNAL, "there is no need for an order"};
  }
  virtual void end_stream(void *) noexcept {}
};

// Brings the thread back to its device at the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(Devices &devices) : devices_(devices), known_(devices.current(before_).ok()) {}
  ~DeviceGuard() {
    if (known_) devices_.enter(before_);
  }
  DeviceGuard(const DeviceGuard &) = delete;
  DeviceGuard &operator=(const DeviceGuard &) = delete;

 private:
  Devices &devices_;
  DevicePlace before_;
  const bool known_;
};

// The devices of `kind`: "cuda", "hip" or "acl". `look_up` finds a function that the collective library exports, or a library
// that the collective library needs. Where a function of the vendor's runtime is missing, the calls say so.
Devices &devices(const char *kind, void *(*look_up)(const char *));

}  // namespace isthmus::bridge
