// The runtime of a vendor's devices: all that is the same for every vendor. What differs, the vendor's calls, is the class `Calls`:
//
//   static constexpr const char *kVendor, *kMaker, *kName;   "cuda", "nvidia", "NVIDIA driver"
//   static constexpr bool kValues                   whether there are calls that wait for and write values of 64 bits
//   static constexpr bool kTrailing                 whether calls without a stream may return before their work is done; where:
//   bool default_free()                             whether something may be submitted to the default stream now
//   static constexpr bool kWays                     whether copy() is told the Way
//   using Handle = void *                           a stream, an event
//   int devices(); std::string version(); std::string describe(int device); int numa(int device)
//   bool waits(int device)                          where there are: whether this device's streams do
//   Float8 float8(int device)
//   static constexpr Dlpack kDlpack; int64_t dlpack_stream(const void *handle)   as in Runtime
//   bool begin(int device, void *page)              whether the device has been reset, and is used anew from now on; page: memory
//                                                   that was registered for the device, or null
//   intptr_t enter(int device), void exit(intptr_t) noexcept   between them this thread's calls mean the device
//   static constexpr Ends kEnds                     the names of the calls that end something
//   ... and the calls that are made between enter() and exit(), as vendor_devices.hpp and vendor_stream.hpp use them. A call throws Error(Device)
//   with the vendor, the call and its code. A call whose name begins with try_ returns the Status. The comparison of values is signed.
//
// The streams of some devices wait for values. Such a device has gates, which are words that the host raises, and its signals are words
// that the stream writes. Other devices have no gates, and a function that the stream calls on the host makes their signals (words.hpp).
//
// Every call of the vendor's stands between enter() and exit(). So it does not matter which device the user's thread has chosen.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/fork.hpp"
#include "base/lock.hpp"
#include "device/runtime.hpp"
#include "device/vendor_devices.hpp"
#include "device/vendor_stream.hpp"

namespace isthmus::device {

struct Ends {
  const char *stream, *event, *memory, *registration;
};

template <class Calls>
class VendorRuntime final : public Runtime {
 public:
  explicit VendorRuntime(Calls calls) : devices_(std::move(calls)) {}

  const char *maker() const noexcept override { return Calls::kMaker; }
  const char *vendor() const noexcept override { return Calls::kVendor; }
  std::string version() const override { return devices_.calls.version(); }
  int devices() const override { return devices_.count(); }
  std::string describe(int device) const override {
    devices_.at(device);
    return devices_.calls.describe(device);
  }
  int numa(int device) const override {
    devices_.at(device);
    return devices_.calls.numa(device);
  }
  Float8 float8(int device) const override {
    devices_.at(device);
    return devices_.calls.float8(device);
  }
  Dlpack dlpack() const noexcept override { return Calls::kDlpack; }
  int64_t dlpack_stream(const void *handle) const override { return devices_.calls.dlpack_stream(handle); }
  Capabilities capabilities(int device) const override {
    devices_.at(device);
    Capabilities c;
    c.gate = devices_.waits(device) ? GateKind::HostStore : GateKind::None;
    c.host_access = false;
    c.asynchronous_copy = true;
    c.signals_wake = !devices_.waits(device);
    return c;
  }

  std::unique_ptr<Stream> make_stream(int device, const char *) override {
    const CurrentDevice<Calls> current(devices_, device);
    return std::make_unique<VendorStream<Calls>>(devices_, device, devices_.calls.make_stream(), true);
  }
  std::unique_ptr<Stream> adopt(int device, void *handle) override {
    const CurrentDevice<Calls> current(devices_, device);
    return std::make_unique<VendorStream<Calls>>(devices_, device, handle, false);
  }
  std::unique_ptr<Event> make_event(int device) override { return std::make_unique<VendorEvent<Calls>>(devices_, device); }
  std::unique_ptr<StreamGate> make_gate(int device) override {
    devices_.at(device);
    if constexpr (Calls::kValues)
      if (devices_.waits(device)) return std::make_unique<VendorGate<Calls>>(devices_, device);
    fail(Code::Unsupported, "{}: no stream of device {} waits for the host", Calls::kName, device);
  }
  std::unique_ptr<Signal> make_signal(int device, Wake wake, void *context) override {
    devices_.at(device);
    if constexpr (Calls::kValues)
      if (devices_.waits(device)) return std::make_unique<VendorSignal<Calls>>(devices_, device);
    return std::make_unique<CalledSignal<Calls>>(devices_, device, wake, context);
  }

  bool mark_default(int device, Event &event) override {
    if constexpr (Calls::kTrailing) {
      const CurrentDevice<Calls> current(devices_, device);
      if (!devices_.calls.default_free()) return false;
      VendorStream<Calls> theirs(devices_, device, nullptr, false);
      event.record(theirs);
      return true;
    }
    return false;
  }

  void copy(Stream &stream, void *to, const void *from, size_t bytes, const std::atomic<bool> *) override {
    if (bytes == 0) return;
    const CurrentDevice<Calls> current(devices_, stream.device());
    if constexpr (Calls::kWays)
      devices_.calls.copy(to, from, bytes, devices_.way(stream.device(), to, from), stream.handle());
    else devices_.calls.copy(to, from, bytes, stream.handle());
  }

  void *allocate(int device, size_t bytes) override {
    const CurrentDevice<Calls> current(devices_, device);
    return devices_.calls.allocate(std::max<size_t>(bytes, 1));
  }
  void release(int device, void *memory) noexcept override {
    devices_.quietly(device, Calls::kEnds.memory, [&calls = devices_.calls, memory] { return calls.try_release(memory); });
  }

  void register_host(int device, void *memory, size_t bytes) override { devices_.register_host(device, memory, bytes); }
  bool unregister_host(int device, void *memory) noexcept override { return devices_.unregister_host(device, memory); }
  void *device_address(int device, const void *memory) const override { return devices_.device_address(device, memory); }
  void begin(int device) override { devices_.begin(device); }
  const char *stuck(int device) const noexcept override { return devices_[device].stuck.call(); }
  void does_not_come_back(int device, const char *call) noexcept override { devices_[device].stuck.hold(call); }
  void came_back(int device) noexcept override { devices_[device].stuck.let_go(); }
  PointerInfo find(const void *memory) const override {
    const PointerInfo found = devices_.calls.find(memory);
    if (found.where != Where::Unknown) return found;
    for (int d = 0; d < devices_.count(); ++d)  // not all vendors know what was registered
      if (void *const there = devices_[d].registered.there(memory)) return {Where::Registered, d, there};
    return found;
  }

 private:
  VendorDevices<Calls> devices_;
};

// The one runtime of a vendor in this process. The runtime is never destroyed: streams and words outlive static destructors. Where `open`
// throws, the next call tries again. What a driver has begun does not go on in a forked child, so a child does not ask the driver.
template <class Calls>
class Opened {
 public:
  template <class Open>
  static Runtime &once(Open open) {
    OpenedRuntime &mine = *held;
    const Lock lock(mine.mutex);
    if (mine.runtime) return *mine.runtime;
    if (begun.in_a_parent())
      fail(
          Code::Forked,
          "{}: the parent process has begun it, and it does not work in a forked child; start this process by spawn, or set "
          "ISTHMUS_DEVICE=host for a rank on host memory",
          Calls::kName);
    begun.note();
    try {
      mine.runtime = new VendorRuntime<Calls>(open());
    } catch (...) {
      begun.take_back();
      throw;
    }
    return *mine.runtime;
  }

 private:
  struct OpenedRuntime {
    Mutex mutex;  // held over the vendor's calls that open the runtime: one thread makes them
    VendorRuntime<Calls> *runtime ISTHMUS_GUARDED_BY(mutex) = nullptr;
  };
  static inline PerProcess<OpenedRuntime> held;
  static inline constinit Beginning begun;
};

}  // namespace isthmus::device
