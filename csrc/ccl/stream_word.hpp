// A vendor's library says no more of a device's failure than that there is one. The stream knows which.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "ccl/first_failure.hpp"
#include "device/abandoned.hpp"
#include "device/runtime.hpp"

namespace isthmus::ccl {

// How many questions a driver has not answered in time, and not since. Meanwhile nobody asks: of communicators that fail one after the other one
// waits for a driver that hangs.
inline PerProcess<std::atomic<int>> unanswered;

// Adds what `stream` says to a failure of the library's. Where the stream says that the device has failed, so does the failure, whatever code the
// library gave it. The driver has 2 s to answer: a thread that waits for the device may have the driver locked. Any thread. One that drives operations
// stands meanwhile, with all that it drives; once, as a driver that hangs is asked once.
inline Status with_stream_word(Status s, const std::shared_ptr<device::Stream> &stream) noexcept {
  constexpr double kAnswer = 2;
  if (s.ok() || unanswered->load(std::memory_order_relaxed) > 0) return s;
  try {
    const auto device = device::call_within(
        kAnswer, [stream] { return stream->status(); }, [] { unanswered->fetch_sub(1, std::memory_order_relaxed); });
    if (!device) {
      unanswered->fetch_add(1, std::memory_order_relaxed);  // the answer may be here meanwhile
    } else if (device->code == Code::Device) {
      s.text += "; its stream has failed: " + device->text;
      s.code = Code::Device;
    }
  } catch (const std::exception &) {}  // no memory: the library's words stand alone
  return s;
}

// The first failure of a communicator, with the word of the communicator's stream where the library says that the device has failed. The stream is
// asked by the first thread that wants the text, and not by the one that keeps the failure: that one may be in the library, where an abort waits for
// it. Threads that want the text meanwhile wait for the same answer.
class StreamFailure : public FirstFailure {
 public:
  explicit StreamFailure(const std::shared_ptr<device::Stream> &stream) : stream_(stream) {}
  void keep(Status s) {
    const bool device = s.code == Code::Device;
    keep(std::move(s), device);
  }
  void keep(Status s, bool asks_stream) {
    if (s.ok()) return;
    const Lock lock(mutex_);
    if (status_.ok()) asks_stream_ = asks_stream, status_ = std::move(s);
    happened_.store(true, std::memory_order_release);
  }
  Status status() const {
    const Lock one(asking_);
    Status s;
    {
      const Lock lock(mutex_);
      if (!asks_stream_) return status_;
      s = status_;
    }
    s = with_stream_word(std::move(s), stream_);
    const Lock lock(mutex_);
    asks_stream_ = false;
    return status_ = std::move(s);
  }

 private:
  const std::shared_ptr<device::Stream> &stream_;  // the communicator's
  mutable Mutex asking_;                           // before mutex_; held while the stream is asked
  mutable bool asks_stream_ ISTHMUS_GUARDED_BY(mutex_) = false;
};

}  // namespace isthmus::ccl
