// The streams, events, gates and signals of a vendor's device, over the vendor's calls (vendor_runtime.hpp).
//
// Where streams wait for values and write them: a gate is a word that the host raises, and a signal is a word that the stream writes.
// Elsewhere there are no gates, and a signal is a function that the stream calls on the host.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/error.hpp"
#include "device/runtime.hpp"
#include "device/vendor_devices.hpp"
#include "device/words.hpp"

namespace isthmus::device {

template <class Calls>
class VendorStream final : public Stream {
 public:
  VendorStream(VendorDevices<Calls> &devices, int device, typename Calls::Handle stream, bool own)
      : devices_(devices), device_(device), stream_(stream), own_(own) {}
  ~VendorStream() override {
    if (own_)
      devices_.quietly(device_, Calls::kEnds.stream,
                       [&calls = devices_.calls, stream = stream_] { return calls.try_destroy_stream(stream); });
  }
  int device() const noexcept override { return device_; }
  void *handle() const noexcept override { return stream_; }
  bool cut() noexcept override {
    if constexpr (requires { devices_.calls.try_cut_stream(stream_); }) {
      cuts_.fetch_add(1);  // before the vendor drops anything
      // The call is made also where a thread is stuck, because the call frees the thread.
      const auto cut = [&calls = devices_.calls, stream = stream_] { return calls.try_cut_stream(stream); };
      if (devices_.quietly(device_, "the call that stops a stream", cut, true)) return true;
      cuts_.fetch_sub(1);
    }
    return false;
  }
  uint64_t cuts() const noexcept override { return cuts_.load(); }
  Status status() const override {
    try {
      const CurrentDevice<Calls> current(devices_, device_);
      return devices_.calls.try_stream(stream_, device_);
    } catch (const Error &e) { return {e.code(), e.text()}; }
  }
  bool capturing() const override {
    const CurrentDevice<Calls> current(devices_, device_);
    return devices_.calls.capturing(stream_);
  }
  intptr_t enter() const override { return devices_.enter(device_); }
  void exit(intptr_t before) const noexcept override { devices_.exit(before); }

 private:
  std::atomic<uint64_t> cuts_{0};
  VendorDevices<Calls> &devices_;
  const int device_;
  const typename Calls::Handle stream_;
  const bool own_;
};

template <class Calls>
class VendorEvent final : public Event {
 public:
  VendorEvent(VendorDevices<Calls> &devices, int device) : devices_(devices), device_(device) {
    const CurrentDevice<Calls> current(devices_, device_);
    event_ = devices_.calls.make_event();
  }
  ~VendorEvent() override {
    devices_.quietly(device_, Calls::kEnds.event,
                     [&calls = devices_.calls, event = event_] { return calls.try_destroy_event(event); });
  }
  void record(Stream &stream) override {
    const CurrentDevice<Calls> current(devices_, device_);
    devices_.calls.record(event_, stream.handle());
    recorded_.store(true, std::memory_order_release);
  }
  void hold(Stream &stream) const override {
    if (!recorded_.load(std::memory_order_acquire)) return;
    const CurrentDevice<Calls> current(devices_, device_);
    devices_.calls.hold(stream.handle(), event_);
  }
  bool reached() const override {
    if (!recorded_.load(std::memory_order_acquire)) return true;
    const CurrentDevice<Calls> current(devices_, device_);
    return devices_.calls.reached(event_);
  }

 private:
  VendorDevices<Calls> &devices_;
  const int device_;
  typename Calls::Handle event_ = nullptr;
  std::atomic<bool> recorded_{false};  // of an event that was never recorded not all vendors say that it is reached
};

template <class Calls>
class VendorGate final : public StreamGate {
 public:
  VendorGate(VendorDevices<Calls> &devices, int device)
      : devices_(devices), device_(device), word_(devices.take_gate(device, words_)) {}
  ~VendorGate() override { words_->give(word_); }
  void arm(Stream &stream, uint64_t value) override {
    const CurrentDevice<Calls> current(devices_, device_);
    devices_.calls.wait_value(stream.handle(), word_.there, value);
  }
  void open(uint64_t value) noexcept override { raise(value); }
  void poison() noexcept override { raise(kOpen); }

 private:
  static constexpr uint64_t kOpen = uint64_t{1} << 62;  // the comparison is signed: above every value, and below none
  void raise(uint64_t value) noexcept {
    std::atomic<uint64_t> &now = *word_.host;
    uint64_t seen = now.load(std::memory_order_relaxed);
    while (seen < value && !now.compare_exchange_weak(seen, value, std::memory_order_release, std::memory_order_relaxed)) {}
  }
  VendorDevices<Calls> &devices_;
  const int device_;
  Words *words_ = nullptr;  // where the word comes from and goes back to
  const Word word_;
};

template <class Calls>
class VendorSignal final : public Signal {
 public:
  VendorSignal(VendorDevices<Calls> &devices, int device)
      : devices_(devices), device_(device), word_(devices.take_signal(device)) {}
  ~VendorSignal() override { devices_[device_].signals.give(word_); }
  void arm(Stream &stream, uint64_t value) override {
    const CurrentDevice<Calls> current(devices_, device_);
    devices_.calls.write_value(stream.handle(), word_.there, value);
  }
  uint64_t value() const noexcept override { return word_.host->load(std::memory_order_acquire); }

 private:
  VendorDevices<Calls> &devices_;
  const int device_;
  const Word word_;
};

template <class Calls>
class CalledSignal final : public Signal {
 public:
  CalledSignal(VendorDevices<Calls> &devices, int device, Wake wake, void *context)
      : devices_(devices), device_(device), marks_(devices.at(device).marks.take(wake, context)) {}
  ~CalledSignal() override { marks_.end(); }
  void arm(Stream &stream, uint64_t value) override {
    const CurrentDevice<Calls> current(devices_, device_);
    Marks::Mark &mark = marks_.take(value);
    try {
      devices_.calls.call_host(device_, stream.handle(), mark);
    } catch (...) {
      marks_.give_back(mark);
      throw;
    }
  }
  uint64_t value() const noexcept override { return marks_.value(); }

 private:
  VendorDevices<Calls> &devices_;
  const int device_;
  Marks &marks_;
};

}  // namespace isthmus::device
