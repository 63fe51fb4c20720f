// The host as a device: a CPU rank goes through the same plan as one with an accelerator. Device memory is host memory, a stream is a
// thread with a queue, and gates and signals are stores. It is what a vendor's library for CPUs computes on, whose calls block:
// they are run on the stream's thread (HostStream::call), so that the caller never does.
#pragma once

#include <cstring>
#include <type_traits>

#include "device/runtime.hpp"

namespace isthmus::device {

class HostStream : public Stream {
 public:
  // The arguments of a call, copied into the queue.
  struct Arguments {
    static constexpr size_t kBytes = 96;
    alignas(8) std::byte bytes[kBytes];
  };
  using Function = Status (*)(const void *arguments);

  // Submits `function(arguments)`; not run where a step before it has failed. `what` is static text that names it while it runs.
  template <class A>
  void call(const char *what, Status (*function)(const A &), const A &arguments) {
    static_assert(sizeof(A) <= Arguments::kBytes && std::is_trivially_copyable_v<A> && std::is_trivially_destructible_v<A>);
    Arguments copy{};
    std::memcpy(copy.bytes, &arguments, sizeof(A));
    submit_call(
        what, reinterpret_cast<void (*)()>(function),
        [](void (*f)(), const Arguments &a) {
          A own;
          std::memcpy(&own, a.bytes, sizeof(A));
          return reinterpret_cast<Status (*)(const A &)>(f)(own);
        },
        copy);
  }
  // Waits until all that was submitted has run. False: not until the deadline.
  virtual bool drain(int64_t deadline_ns) = 0;
  virtual bool usable() const noexcept = 0;  // not abandoned
  // What the thread is in now: the name of a call, or nullptr. For the words of a timeout.
  virtual const char *inside() const noexcept = 0;
  // Runs nothing more: steps that have not begun are skipped, and the destructor leaves the thread behind if it is still in a call
  // then. Any thread.
  virtual void abandon() noexcept = 0;

 protected:
  using Invoke = Status (*)(void (*)(), const Arguments &);
  virtual void submit_call(const char *what, void (*function)(), Invoke invoke, const Arguments &arguments) = 0;
};

// The runtime of this process. Lives as long as the process.
Runtime &host_runtime();

}  // namespace isthmus::device
