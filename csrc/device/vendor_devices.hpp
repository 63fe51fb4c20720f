// What a vendor's runtime shares with the streams, events, gates and signals made from it: the vendor's calls, and the state of each device.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "device/abandoned.hpp"
#include "device/pinned.hpp"
#include "device/registered.hpp"
#include "device/runtime.hpp"
#include "device/stuck.hpp"
#include "device/words.hpp"

namespace isthmus::device {

// The way that a copy goes, for vendors that have to be told.
enum class Way : uint8_t { HostToHost, HostToDevice, DeviceToHost, DeviceToDevice };

// `Calls`: vendor_runtime.hpp says what it has. Thread-safe.
template <class Calls>
class VendorDevices {
 public:
  struct DeviceState {
    Registered registered;
    Words gates, signals;
    MarkPool marks;
    std::atomic<void *> page{nullptr};  // the last page of words that was registered
    StuckCalls stuck;
  };

  explicit VendorDevices(Calls vendor) : calls(std::move(vendor)), devices_(static_cast<size_t>(calls.devices())) {}
  const Calls calls;

  int count() const noexcept { return static_cast<int>(devices_.size()); }
  // Error(Argument): there is no such device.
  DeviceState &at(int device) const {
    if (device < 0 || static_cast<size_t>(device) >= devices_.size())
      fail(Code::Argument, "{}: there is no device {}; it has {}", Calls::kName, device, devices_.size());
    return devices_[static_cast<size_t>(device)];
  }
  // The state of a device that is there.
  DeviceState &operator[](int device) const noexcept { return devices_[static_cast<size_t>(device)]; }
  bool waits(int device) const {
    if constexpr (Calls::kValues) return calls.waits(device);
    else return false;
  }

  // From here to exit() the device is the thread's current one, for the vendor's calls. Where the device is that already, by an enter() of ours that
  // has not been left, the vendor is asked nothing: a submission of many calls enters once.
  intptr_t enter(int device) const {
    if (here_.devices == this && here_.device == device) return kEntered;
    at(device);
    const intptr_t before = calls.enter(device);
    here_ = {this, device};
    return before;
  }
  void exit(intptr_t before) const noexcept {
    if (before == kEntered) return;
    here_ = {};  // also where another device was current before: that one is entered anew
    calls.exit(before);
  }

  // The device is the thread's current one while this object lives. Afterwards the thread has what it had before.
  class Current {
   public:
    Current(const VendorDevices &devices, int device) : devices_(devices), before_(devices.enter(device)) {}
    ~Current() { devices_.exit(before_); }
    Current(const Current &) = delete;
    Current &operator=(const Current &) = delete;

   private:
    const VendorDevices &devices_;
    const intptr_t before_;
  };

  // Only for vendors that find registered memory where the host does.
  Way way(int device, const void *to, const void *from) const {
    const Registered &known = at(device).registered;
    const bool there = known.there(to) == nullptr;
    if (known.there(from)) return there ? Way::HostToDevice : Way::HostToHost;
    return there ? Way::DeviceToDevice : Way::DeviceToHost;
  }

  // Makes a call that ends something. Such a call may fail, or wait for ever for a device that hangs. Then the log says so, once, and no more can
  // be done: false. A later call would wait for the same device, and is not even begun, unless `always`.
  bool quietly(int device, const char *name, std::function<Status()> call, bool always = false) const noexcept {
    constexpr double kPatience = 2;
    StuckCalls &stuck = (*this)[device].stuck;
    if (!always && stuck.call()) return false;
    Status s;
    try {
      const auto ended = call_within(
          kPatience,
          [this, device, call = std::move(call)] {
            const Current current(*this, device);
            return call();
          },
          [&stuck] { stuck.let_go(); });
      if (ended && ended->ok()) return true;
      if (!ended) {
        stuck.hold(name);
        s.text = formatted(
            "{}: {} has not come back from device {} in {} s; its thread is left behind, and what Isthmus still has on the "
            "device stays there until the process ends",
            Calls::kName, name, device, kPatience);
      } else {
        s = *ended;
      }
    } catch (const std::exception &e) { s = {Code::Resource, e.what()}; }
    stuck.say(s.text);
    return false;
  }

  // Pins the host memory where no other device has, and asks where this device finds it.
  void register_host(int device, void *memory, size_t bytes) {
    DeviceState &d = at(device);
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    if (!memory || bytes == 0 || reinterpret_cast<uintptr_t>(memory) % page != 0)
      fail(Code::Argument, "{}: {} bytes at {} are no whole pages to register", Calls::kName, bytes, memory);
    if (d.registered.overlaps(memory, bytes))
      fail(Code::Argument, "{}: a part of the {} bytes at {} is registered already", Calls::kName, bytes, memory);
    const Current current(*this, device);
    pinned_.add(memory, bytes, Calls::kName, [&] { calls.pin(memory, bytes); });
    void *there = nullptr;
    try {
      there = calls.device_pointer(memory);
    } catch (...) {
      if (pinned_.remove(memory)) calls.try_unpin(memory);
      throw;
    }
    d.registered.add(memory, bytes, there);
  }
  bool unregister_host(int device, void *memory) noexcept {
    if (!at(device).registered.remove(memory) || !pinned_.remove(memory)) return true;
    return quietly(device, Calls::kEnds.registration, [this, memory] { return calls.try_unpin(memory); });
  }
  void *device_address(int device, const void *memory) const {
    if (void *const there = at(device).registered.there(memory)) return there;
    fail(Code::Argument, "{}: the host memory at {} is not registered for device {}", Calls::kName, memory, device);
  }

  void begin(int device) {
    DeviceState &d = at(device);
    if (!calls.begin(device, d.page.load(std::memory_order_acquire))) return;
    d.page.store(nullptr, std::memory_order_relaxed);
    d.gates.forget();
    d.signals.forget();
  }

  Word take_signal(int device) {
    return *at(device).signals.take([&] { return page_of_words(device); });
  }
  // The word of a gate. Some vendors' streams wait only for words that the vendor made. Elsewhere a gate's word is as a signal's. `from`: whose
  // word it is, and to whom it goes back.
  Word take_gate(int device, Words *&from) {
    DeviceState &d = at(device);
    const std::optional<Word> made = d.gates.take([&]() -> std::vector<Word> {
      const Current current(*this, device);
      void *const word = calls.make_gate_word();
      if (!word) return {};
      return {{new (word) std::atomic<uint64_t>(0), word}};
    });
    from = made ? &d.gates : &d.signals;
    return made ? *made : take_signal(device);
  }

 private:
  // A page of words, one for each cache line, in memory of the host that the device sees.
  std::vector<Word> page_of_words(int device) {
    constexpr size_t kApart = 64;
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    void *memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_system("mmap", errno);
    try {
      register_host(device, memory, page);
    } catch (...) {
      ::munmap(memory, page);
      throw;
    }
    auto *const there = static_cast<std::byte *>(device_address(device, memory));
    at(device).page.store(memory, std::memory_order_release);
    std::vector<Word> words;
    for (size_t at = 0; at + kApart <= page; at += kApart)
      words.push_back({new (static_cast<std::byte *>(memory) + at) std::atomic<uint64_t>(0), there + at});
    return words;
  }

  static constexpr intptr_t kEntered = INTPTR_MIN;
  struct Here {
    const VendorDevices *devices = nullptr;
    int device = -1;
  };
  static inline thread_local Here here_;  // what this thread has entered
  PinnedRanges pinned_;
  mutable std::vector<DeviceState> devices_;
};

template <class Calls>
using CurrentDevice = typename VendorDevices<Calls>::Current;

}  // namespace isthmus::device
