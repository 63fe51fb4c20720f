// A device adapter to copy: docs/howto/add-a-vendor.md says how. Copy this file to csrc/device/<vendor>.cpp, and replace each call of
// acme:: by the vendor's. All that is the same for every vendor is in device/vendor_runtime.hpp.
//
// The interface test of every runtime (tests/cpp/device_test.cpp) runs on this adapter too. Acme is imaginary: acme.hpp.
#pragma once

#include "acme.hpp"
#include "base/error.hpp"
#include "base/format.hpp"
#include "device/calling.hpp"
#include "device/vendor_runtime.hpp"

namespace isthmus::device {

// A code of the vendor's as a Status: the vendor, the call, the code. A user sees this text.
inline Status acme_status(const char *call, acme::Code code) {
  if (code == 0) return {};
  return {Code::Device, formatted("Acme: {} failed with {}", call, code)};
}

// Makes a call that gives the device work or may wait for it. called() lets others see that this thread is inside the vendor's call: a
// thread that never comes out is then named in an error, and left behind.
template <class F>
void acme_call(const char *name, F call) {
  const acme::Code code = called("Acme", name, call);
  const Status status = acme_status(name, code);
  if (!status.ok()) throw Error(status.code, status.text);
}

class AcmeCalls {
 public:
  static constexpr const char *kVendor = "acme";  // as in ISTHMUS_DEVICE=acme:0
  static constexpr const char *kMaker = "acme";   // ranks without a label form an island by this
  static constexpr const char *kName = "Acme";    // in texts for people
  static constexpr Ends kEnds{"acme::stream_destroy", "acme::event_destroy", "acme::release", "acme::unregister_host"};
  using Handle = void *;  // of a stream, and of an event

  // Whether a stream can wait for a 64-bit word and write one. true: the device has gates, and these are needed as well:
  // waits(device), wait_value(stream, word, value), write_value(stream, word, value), make_gate_word(). cuda.cpp has them.
  // false: a signal is a function that the stream calls on the host, and a call that needs the host waits for it.
  static constexpr bool kValues = false;
  // Whether a call without a stream may return before its work is done (CUDA's copy from pageable memory does).
  // true: default_free() is needed as well.
  static constexpr bool kTrailing = false;
  // Whether copy() must be told the direction, as Ascend's has to be.
  static constexpr bool kWays = false;
  // DLPack's type of this vendor's devices (12: an extension device), and of memory without a device number (0: none).
  static constexpr Dlpack kDlpack{12, 0};
  int64_t dlpack_stream(const void *) const { return -1; }  // -1: DLPack has no numbers for these streams

  // ---- what there is
  int devices() const {
    int count = 0;
    acme_call("acme::device_count", [&] { return acme::device_count(&count); });
    return count;
  }
  std::string version() const { return "1.0"; }
  std::string describe(int device) const { return formatted("Acme device {} (an example)", device); }
  int numa(int) const { return -1; }  // the host's node that is nearest, or -1
  Float8 float8(int) const { return Float8::Ocp; }

  // ---- the current device of a thread. Every call below is made between enter() and exit(). After exit() the thread must have the
  // device that it had before.
  intptr_t enter(int) const { return 0; }
  void exit(intptr_t) const noexcept {}
  bool begin(int, void *) const { return false; }  // whether the program has reset the device since

  // ---- streams
  Handle make_stream() const {
    acme::Stream *stream = nullptr;
    acme_call("acme::stream_create", [&] { return acme::stream_create(&stream); });
    return stream;
  }
  Status try_destroy_stream(Handle stream) const {
    return acme_status(kEnds.stream, acme::stream_destroy(static_cast<acme::Stream *>(stream)));
  }
  Status try_stream(Handle, int) const { return {}; }  // what has gone wrong on it so far
  bool capturing(Handle) const { return false; }       // whether the user is recording a graph on it
  void call_host(int, Handle stream,
                 Marks::Mark &mark) const {  // the stream calls Marks::reached(&mark) when it comes to it
    acme_call("acme::launch_host_function",
              [&] { return acme::launch_host_function(static_cast<acme::Stream *>(stream), Marks::reached, &mark); });
  }
  void copy(void *to, const void *from, size_t bytes, Handle stream) const {
    acme_call("acme::copy_async", [&] { return acme::copy_async(to, from, bytes, static_cast<acme::Stream *>(stream)); });
  }

  // ---- events: order between two streams
  Handle make_event() const {
    acme::Event *event = nullptr;
    acme_call("acme::event_create", [&] { return acme::event_create(&event); });
    return event;
  }
  Status try_destroy_event(Handle event) const {
    return acme_status(kEnds.event, acme::event_destroy(static_cast<acme::Event *>(event)));
  }
  void record(Handle event, Handle stream) const {
    acme_call("acme::event_record",
              [&] { return acme::event_record(static_cast<acme::Event *>(event), static_cast<acme::Stream *>(stream)); });
  }
  void hold(Handle stream, Handle event) const {
    acme_call("acme::stream_wait_event", [&] {
      return acme::stream_wait_event(static_cast<acme::Stream *>(stream), static_cast<acme::Event *>(event));
    });
  }
  bool reached(Handle event) const {
    bool reached = false;
    acme_call("acme::event_query", [&] { return acme::event_query(static_cast<acme::Event *>(event), &reached); });
    return reached;
  }

  // ---- memory. allocate() is aligned to 256 bytes.
  void *allocate(size_t bytes) const {
    void *memory = nullptr;
    acme_call("acme::allocate", [&] { return acme::allocate(&memory, bytes); });
    return memory;
  }
  Status try_release(void *memory) const { return acme_status(kEnds.memory, acme::release(memory)); }
  // Host memory that the device can reach: pinned, and mapped at an address of the device.
  // Code::Resource: the host can lock no more memory. Then less is tried.
  void pin(void *memory, size_t bytes) const {
    const acme::Code code = called("Acme", "acme::register_host", [&] { return acme::register_host(memory, bytes); });
    const Status s = acme_status("acme::register_host", code);
    if (!s.ok()) throw Error(code == acme::kOutOfMemory ? Code::Resource : s.code, s.text);
  }
  Status try_unpin(void *memory) const { return acme_status(kEnds.registration, acme::unregister_host(memory)); }
  void *device_pointer(void *memory) const { return memory; }
  // Whose memory that is. A pointer that the vendor does not know is Where::Unknown, and no error.
  PointerInfo find(const void *memory) const {
    bool yes = false;
    acme_call("acme::is_device_memory", [&] { return acme::is_device_memory(memory, &yes); });
    return yes ? PointerInfo{Where::Device, 0} : PointerInfo{};
  }
};

// The one runtime of this process. A real adapter opens the vendor's library here, and throws Error(Unsupported) with one sentence that
// says what is missing and what to do: the library, a version that is new enough, a device.
inline Runtime &acme_runtime() {
  return Opened<AcmeCalls>::once([] { return AcmeCalls(); });
}

}  // namespace isthmus::device
