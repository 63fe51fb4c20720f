// What the bridge asks of a vendor's devices itself: on which one a thread works. The rest is libisthmus'.
#pragma once

#include <cstddef>

#include "outcome.hpp"

namespace isthmus::bridge {

// Where a thread works.
struct Place {
  int device = 0;
  void *context = nullptr;  // the vendor's, where it has such
};

class Devices {
 public:
  virtual ~Devices() = default;
  virtual Outcome current(Place &place) = 0;  // of the calling thread
  virtual void enter(const Place &place) noexcept = 0;
  virtual Outcome wait(void *stream) = 0;  // until it has done what it holds; refused where that is being captured
  // A few bytes of device memory, as they are when the stream has come so far. Waits for the stream.
  virtual Outcome read(void *to, const void *from, size_t bytes, void *stream) = 0;

  // A handle by which each thread means a stream of its own.
  virtual bool of_thread(void *) const noexcept { return false; }
  // Where there is such a handle: streams of the bridge's own, on the current device. What `behind` is given from now on waits for what
  // `ahead` holds now.
  virtual Outcome make_stream(void **) { return {ISTHMUS_ERR_INTERNAL, "there is no need for a stream"}; }
  virtual Outcome order(void *, void *) { return {ISTHMUS_ERR_INTERNAL, "there is no need for an order"}; }
  virtual void end_stream(void *) noexcept {}
};

// While this lives the thread may work elsewhere.
class Moved {
 public:
  explicit Moved(Devices &devices) : devices_(devices), known_(devices.current(before_).ok()) {}
  ~Moved() {
    if (known_) devices_.enter(before_);
  }
  Moved(const Moved &) = delete;
  Moved &operator=(const Moved &) = delete;

 private:
  Devices &devices_;
  Place before_;
  const bool known_;
};

// "cuda", "hip" or "acl"; `look_up` finds what the collective library and the libraries that it needs export. Never null; where a function is
// missing, the calls say so.
Devices &devices(const char *kind, void *(*look_up)(const char *));

}  // namespace isthmus::bridge
