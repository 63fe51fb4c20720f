// The host as a device: a rank on a CPU goes through the same plan as a rank with an accelerator. Device memory is host memory. A stream is a
// thread with a queue. Gates and signals are stores. A vendor's library for CPUs computes on such streams: its calls block, so the stream's
// thread makes them (HostStream::call), and the caller never blocks.
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

  // Submits `function(arguments)`, which is skipped where an earlier step has failed. `what` is static text that names the call while it runs.
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
  // Waits until all that was submitted has run. False: the deadline came first, or the stream ended.
  virtual bool drain(int64_t deadline_ns) = 0;
  virtual bool usable() const noexcept = 0;  // not abandoned
  // The name of the call in which the thread is now, or nullptr. For the text of a timeout.
  virtual const char *inside() const noexcept = 0;
  // The stream runs nothing more. Steps that have not begun are skipped. The destructor leaves the thread behind if it is still in a call by
  // then. Any thread.
  virtual void abandon() noexcept = 0;

 protected:
  using Invoke = Status (*)(void (*)(), const Arguments &);
  virtual void submit_call(const char *what, void (*function)(), Invoke invoke, const Arguments &arguments) = 0;
};

// The runtime of this process, which lives as long as the process.
Runtime &host_runtime();

}  // namespace isthmus::device
