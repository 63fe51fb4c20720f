// The runtime of a vendor's devices: all that is the same whoever made them. What differs, the vendor's calls, is the class
// `Calls`:
//
//   static constexpr const char *kVendor, *kMaker, *kName;   "cuda", "nvidia", "NVIDIA driver"
//   static constexpr bool kValues                   whether there are calls that wait for and write values of 64 bits
//   static constexpr bool kTrailing                 whether calls without a stream may return before their work is done; where:
//   bool default_free()                             whether the default stream may be given something now
//   static constexpr bool kWays                     whether copy() is told the Way
//   using Handle = void *                           a stream, an event
//   int devices(); std::string version(); std::string describe(int device); int numa(int device)
//   bool waits(int device)                          where there are: whether this device's streams do
//   Float8 float8(int device)
//   static constexpr Dlpack kDlpack; int64_t dlpack_stream(const void *handle)   as in Runtime
//   bool begin(int device, void *page)              whether the device has been reset, from now on used anew; page: what was
//                                                   registered for it, or null
//   intptr_t enter(int device), void exit(intptr_t) noexcept   between them the device is what this thread's calls mean
//   static constexpr Ends kEnds                     what the calls that end something are called
//   ... and the calls that are made between them, as they are used below: they throw Error with the vendor, the call and
//   its code, or return the Status where their name begins with try_. The comparison of values is signed.
//
// A device whose streams wait for values has gates, which are words that the host raises, and its signals are words that the
// stream writes. One whose streams do not has no gates, and its signals are made by a function that the stream calls on the
// host (words.hpp).
//
// Every call of the vendor's stands between enter() and exit(), so it does not matter which device the user's thread had
// chosen.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"
#include "device/registered.hpp"
#include "device/runtime.hpp"
#include "device/words.hpp"

namespace isthmus::device {

// Which way a copy goes, for vendors that have to be told.
enum class Way : uint8_t { HostToHost, HostToDevice, DeviceToHost, DeviceToDevice };

struct Ends {
  const char *stream, *event, *memory, *registration;
};

template <class Calls>
class VendorRuntime final : public Runtime {
 public:
  using Handle = typename Calls::Handle;

  explicit VendorRuntime(Calls calls) : calls_(std::move(calls)), devices_(static_cast<size_t>(calls_.devices())) {}

  const char *maker() const noexcept override { return Calls::kMaker; }
  const char *vendor() const noexcept override { return Calls::kVendor; }
  std::string version() const override { return calls_.version(); }
  int devices() const override { return static_cast<int>(devices_.size()); }
  std::string describe(int device) const override {
    at(device);
    return calls_.describe(device);
  }
  int numa(int device) const override {
    at(device);
    return calls_.numa(device);
  }
  Float8 float8(int device) const override {
    at(device);
    return calls_.float8(device);
  }
  Dlpack dlpack() const noexcept override { return Calls::kDlpack; }
  int64_t dlpack_stream(const void *handle) const override { return calls_.dlpack_stream(handle); }
  Capabilities capabilities(int device) const override {
    at(device);
    Capabilities c;
    c.gate = waits(device) ? GateKind::HostStore : GateKind::None;
    c.host_access = false;
    c.asynchronous_copy = true;
    c.signals_wake = !waits(device);
    return c;
  }

  std::unique_ptr<Stream> make_stream(int device, const char *) override {
    const Current current(*this, device);
    return std::make_unique<VendorStream>(*this, device, calls_.make_stream(), true);
  }
  std::unique_ptr<Stream> adopt(int device, void *handle) override {
    const Current current(*this, device);
    return std::make_unique<VendorStream>(*this, device, handle, false);
  }
  std::unique_ptr<Event> make_event(int device) override { return std::make_unique<VendorEvent>(*this, device); }
  std::unique_ptr<Gate> make_gate(int device) override {
    at(device);
    if constexpr (Calls::kValues)
      if (waits(device)) return std::make_unique<VendorGate>(*this, device);
    fail(Code::Unsupported, "{}: no stream of device {} waits for the host", Calls::kName, device);
  }
  std::unique_ptr<Signal> make_signal(int device, Wake wake, void *context) override {
    at(device);
    if constexpr (Calls::kValues)
      if (waits(device)) return std::make_unique<VendorSignal>(*this, device);
    return std::make_unique<CalledSignal>(*this, device, wake, context);
  }

  void behind_default(Stream &stream, Event &event) override {
    if constexpr (Calls::kTrailing) {
      const Current current(*this, stream.device());
      if (!calls_.default_free()) return;
      VendorStream theirs(*this, stream.device(), nullptr, false);
      event.record(theirs);
      event.hold(stream);
    }
  }

  void copy(Stream &stream, void *to, const void *from, size_t bytes, const std::atomic<bool> *) override {
    if (bytes == 0) return;
    const Current current(*this, stream.device());
    if constexpr (Calls::kWays) calls_.copy(to, from, bytes, way(stream.device(), to, from), stream.handle());
    else calls_.copy(to, from, bytes, stream.handle());
  }

  void *allocate(int device, size_t bytes) override {
    const Current current(*this, device);
    return calls_.allocate(std::max<size_t>(bytes, 1));
  }
  void release(int device, void *memory) noexcept override {
    quietly(device, Calls::kEnds.memory, [this, memory] { return calls_.try_release(memory); });
  }

  void register_host(int device, void *memory, size_t bytes) override {
    PerDevice &d = at(device);
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    if (!memory || bytes == 0 || reinterpret_cast<uintptr_t>(memory) % page != 0)
      fail(Code::Argument, "{}: {} bytes at {} are no whole pages to register", Calls::kName, bytes, memory);
    if (d.registered.overlaps(memory, bytes))
      fail(Code::Argument, "{}: a part of the {} bytes at {} is registered already", Calls::kName, bytes, memory);
    const Current current(*this, device);
    pin(memory, bytes);
    void *there = nullptr;
    try {
      there = calls_.device_pointer(memory);
    } catch (...) {
      if (last_user(memory)) calls_.try_unpin(memory);
      throw;
    }
    d.registered.add(memory, bytes, there);
  }
  bool unregister_host(int device, void *memory) noexcept override {
    if (!at(device).registered.remove(memory) || !last_user(memory)) return true;
    return quietly(device, Calls::kEnds.registration, [this, memory] { return calls_.try_unpin(memory); });
  }
  void *device_address(int device, const void *memory) const override {
    if (void *const there = at(device).registered.there(memory)) return there;
    fail(Code::Argument, "{}: the host memory at {} is not registered for device {}", Calls::kName, memory, device);
  }
  void begin(int device) override {
    PerDevice &d = at(device);
    if (!calls_.begin(device, d.page.load(std::memory_order_acquire))) return;
    d.page.store(nullptr, std::memory_order_relaxed);
    d.gates.forget();
    d.signals.forget();
  }
  const char *stuck(int device) const noexcept override {
    const PerDevice &d = devices_[static_cast<size_t>(device)];
    return d.stuck_threads.load(std::memory_order_acquire) > 0 ? d.stuck.load(std::memory_order_relaxed) : nullptr;
  }
  void does_not_come_back(int device, const char *call) noexcept override {
    devices_[static_cast<size_t>(device)].hold(call);
  }
  void came_back(int device) noexcept override { devices_[static_cast<size_t>(device)].let_go(); }
  PointerInfo find(const void *memory) const override {
    const PointerInfo found = calls_.find(memory);
    if (found.where != Where::Unknown) return found;
    for (size_t d = 0; d < devices_.size(); ++d)  // not all vendors know what was registered
      if (void *const there = devices_[d].registered.there(memory)) return {Where::Registered, static_cast<int>(d), there};
    return found;
  }

 private:
  // The device is the thread's while this lives; what it had before is so again.
  class Current {
   public:
    Current(const VendorRuntime &runtime, int device) : calls_(runtime.calls_) {
      runtime.at(device);
      before_ = calls_.enter(device);
    }
    ~Current() { calls_.exit(before_); }
    Current(const Current &) = delete;
    Current &operator=(const Current &) = delete;

   private:
    const Calls &calls_;
    intptr_t before_ = 0;
  };

  class VendorStream final : public Stream {
   public:
    VendorStream(VendorRuntime &runtime, int device, Handle stream, bool own)
        : runtime_(runtime), device_(device), stream_(stream), own_(own) {}
    ~VendorStream() override {
      if (own_)
        runtime_.quietly(device_, Calls::kEnds.stream,
                         [&calls = runtime_.calls_, stream = stream_] { return calls.try_destroy_stream(stream); });
    }
    int device() const noexcept override { return device_; }
    void *handle() const noexcept override { return stream_; }
    bool cut() noexcept override {
      if constexpr (requires { runtime_.calls_.try_cut_stream(stream_); }) {
        cuts_.fetch_add(1);  // before anything is dropped
        // Also where a thread is stuck: this is what frees it.
        const auto cut = [&calls = runtime_.calls_, stream = stream_] { return calls.try_cut_stream(stream); };
        if (runtime_.quietly(device_, "the call that stops a stream", cut, true)) return true;
        cuts_.fetch_sub(1);
      }
      return false;
    }
    uint64_t cuts() const noexcept override { return cuts_.load(); }
    Status status() const override {
      try {
        const Current current(runtime_, device_);
        return runtime_.calls_.try_stream(stream_, device_);
      } catch (const Error &e) { return {e.code(), e.text()}; }
    }
    bool capturing() const override {
      const Current current(runtime_, device_);
      return runtime_.calls_.capturing(stream_);
    }
    intptr_t enter() const override { return runtime_.calls_.enter(device_); }
    void exit(intptr_t before) const noexcept override { runtime_.calls_.exit(before); }

   private:
    std::atomic<uint64_t> cuts_{0};
    VendorRuntime &runtime_;
    const int device_;
    const Handle stream_;
    const bool own_;
  };

  class VendorEvent final : public Event {
   public:
    VendorEvent(VendorRuntime &runtime, int device) : runtime_(runtime), device_(device) {
      const Current current(runtime_, device_);
      event_ = runtime_.calls_.make_event();
    }
    ~VendorEvent() override {
      runtime_.quietly(device_, Calls::kEnds.event,
                       [&calls = runtime_.calls_, event = event_] { return calls.try_destroy_event(event); });
    }
    void record(Stream &stream) override {
      const Current current(runtime_, device_);
      runtime_.calls_.record(event_, stream.handle());
      recorded_.store(true, std::memory_order_release);
    }
    void hold(Stream &stream) const override {
      if (!recorded_.load(std::memory_order_acquire)) return;
      const Current current(runtime_, device_);
      runtime_.calls_.hold(stream.handle(), event_);
    }
    bool reached() const override {
      if (!recorded_.load(std::memory_order_acquire)) return true;
      const Current current(runtime_, device_);
      return runtime_.calls_.reached(event_);
    }

   private:
    VendorRuntime &runtime_;
    const int device_;
    Handle event_ = nullptr;
    std::atomic<bool> recorded_{false};  // not all vendors say of an event that never was that it is over
  };

  class VendorGate final : public Gate {
   public:
    VendorGate(VendorRuntime &runtime, int device)
        : runtime_(runtime), device_(device), word_(runtime.take_gate(device, words_)) {}
    ~VendorGate() override { words_->give(word_); }
    void arm(Stream &stream, uint64_t value) override {
      const Current current(runtime_, device_);
      runtime_.calls_.wait_value(stream.handle(), word_.there, value);
    }
    void open(uint64_t value) noexcept override { raise(value); }
    void poison() noexcept override { raise(kOpen); }

   private:
    static constexpr uint64_t kOpen = uint64_t{1} << 62;  // the comparison is signed: above every value, and not below any
    void raise(uint64_t value) noexcept {
      std::atomic<uint64_t> &now = *word_.host;
      uint64_t seen = now.load(std::memory_order_relaxed);
      while (seen < value && !now.compare_exchange_weak(seen, value, std::memory_order_release, std::memory_order_relaxed)) {
      }
    }
    VendorRuntime &runtime_;
    const int device_;
    Words *words_ = nullptr;  // where the word is from
    const Word word_;
  };

  class VendorSignal final : public Signal {
   public:
    VendorSignal(VendorRuntime &runtime, int device)
        : runtime_(runtime), device_(device), word_(runtime.take_signal(device)) {}
    ~VendorSignal() override { runtime_.devices_[static_cast<size_t>(device_)].signals.give(word_); }
    void arm(Stream &stream, uint64_t value) override {
      const Current current(runtime_, device_);
      runtime_.calls_.write_value(stream.handle(), word_.there, value);
    }
    uint64_t value() const noexcept override { return word_.host->load(std::memory_order_acquire); }

   private:
    VendorRuntime &runtime_;
    const int device_;
    const Word word_;
  };

  class CalledSignal final : public Signal {
   public:
    CalledSignal(VendorRuntime &runtime, int device, Wake wake, void *context)
        : runtime_(runtime), device_(device), marks_(runtime.at(device).marks.take(wake, context)) {}
    ~CalledSignal() override { marks_.end(); }
    void arm(Stream &stream, uint64_t value) override {
      const Current current(runtime_, device_);
      Marks::Mark &mark = marks_.take(value);
      try {
        runtime_.calls_.call_host(device_, stream.handle(), mark);
      } catch (...) {
        marks_.give_back(mark);
        throw;
      }
    }
    uint64_t value() const noexcept override { return marks_.value(); }

   private:
    VendorRuntime &runtime_;
    const int device_;
    Marks &marks_;
  };

  struct Pinned {
    size_t bytes = 0;
    int users = 0;
  };
  struct PerDevice {
    Registered registered;
    Words gates, signals;
    MarkPool marks;
    std::atomic<void *> page{nullptr};         // of words, registered: the last one
    std::atomic<const char *> stuck{nullptr};  // the last call that one of these has not come back from
    std::atomic<int> stuck_threads{0};
    void hold(const char *call) noexcept {
      stuck.store(call, std::memory_order_relaxed);
      stuck_threads.fetch_add(1, std::memory_order_release);
    }
    void let_go() noexcept { stuck_threads.fetch_sub(1, std::memory_order_release); }  // may come before hold()
    Mutex said_mutex;
    std::set<std::string> said ISTHMUS_GUARDED_BY(said_mutex);
  };

  PerDevice &at(int device) const {
    if (device < 0 || static_cast<size_t>(device) >= devices_.size())
      fail(Code::Argument, "{}: there is no device {}; it has {}", Calls::kName, device, devices_.size());
    return devices_[static_cast<size_t>(device)];
  }

  bool waits(int device) const {
    if constexpr (Calls::kValues) return calls_.waits(device);
    else return false;
  }

  // Only for vendors that find registered memory where the host does.
  Way way(int device, const void *to, const void *from) const {
    const Registered &known = at(device).registered;
    const bool there = known.there(to) == nullptr;
    if (known.there(from)) return there ? Way::HostToDevice : Way::HostToHost;
    return there ? Way::DeviceToDevice : Way::DeviceToHost;
  }

  // What ends something may fail, or wait for ever for a device that hangs: that is said, once, and no more can be done. False then.
  // What comes later would wait for the same, so it is not even begun, but `always`.
  bool quietly(int device, const char *name, std::function<Status()> call, bool always = false) const noexcept {
    constexpr double kPatience = 2;
    PerDevice &d = devices_[static_cast<size_t>(device)];
    if (!always && stuck(device)) return false;
    Status s;
    try {
      const auto ended = call_within(
          kPatience,
          [this, device, call = std::move(call)] {
            const Current current(*this, device);
            return call();
          },
          [&d] { d.let_go(); });
      if (ended && ended->ok()) return true;
      if (!ended) {
        d.hold(name);
        s.text = formatted(
            "{}: {} has not come back from device {} in {} s; its thread is left behind, and what Isthmus still has on the "
            "device stays there until the process ends",
            Calls::kName, name, device, kPatience);
      } else {
        s = *ended;
      }
    } catch (const std::exception &e) { s = {Code::Resource, e.what()}; }
    const Lock lock(d.said_mutex);
    try {
      if (d.said.insert(s.text).second) ISTHMUS_WARN("{}", s.text);
    } catch (const std::bad_alloc &) {}
    return false;
  }

  // A page of words, a cache line apart, in memory of the host that the device sees.
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
  Word take_signal(int device) {
    return *at(device).signals.take([&] { return page_of_words(device); });
  }
  // Some vendors' streams wait only for words that the vendor made; else a gate's is as a signal's.
  Word take_gate(int device, Words *&from) {
    PerDevice &d = at(device);
    const std::optional<Word> made = d.gates.take([&]() -> std::vector<Word> {
      const Current current(*this, device);
      void *const word = calls_.make_gate_word();
      if (!word) return {};
      return {{new (word) std::atomic<uint64_t>(0), word}};
    });
    from = made ? &d.gates : &d.signals;
    return made ? *made : take_signal(device);
  }

  // A range is pinned once, for all devices; each of them has an address of its own for it.
  void pin(void *memory, size_t bytes) {
    const Lock one(pinning_mutex_);
    {
      const Lock lock(pinned_mutex_);
      if (const auto it = pinned_.find(memory); it != pinned_.end()) {
        if (it->second.bytes < bytes)
          fail(Code::Argument, "{}: only {} bytes at {} are registered already, and not {}", Calls::kName, it->second.bytes,
               memory, bytes);
        ++it->second.users;
        return;
      }
    }
    calls_.pin(memory, bytes);
    const Lock lock(pinned_mutex_);
    pinned_[memory] = {bytes, 1};
  }
  bool last_user(void *memory) {
    const Lock lock(pinned_mutex_);
    const auto it = pinned_.find(memory);
    if (it == pinned_.end() || --it->second.users > 0) return false;
    pinned_.erase(it);
    return true;
  }

  const Calls calls_;
  Mutex pinning_mutex_;  // held over the vendor's call that pins, which a device that hangs may hold up
  Mutex pinned_mutex_;
  std::map<void *, Pinned> pinned_ ISTHMUS_GUARDED_BY(pinned_mutex_);
  mutable std::vector<PerDevice> devices_;
};

// The one runtime of a vendor in this process. Never destroyed: streams and words outlive static destructors. Where `open`
// throws, the next call tries again. What a driver has begun does not go on in a forked child, so it is not asked there.
template <class Calls>
class Opened {
 public:
  template <class Open>
  static Runtime &once(Open open) {
    Held &mine = *held;
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
  struct Held {
    Mutex mutex;  // held over the vendor's calls that open it: one thread does
    VendorRuntime<Calls> *runtime ISTHMUS_GUARDED_BY(mutex) = nullptr;
  };
  static inline PerProcess<Held> held;
  static inline constinit Beginning begun;
};

}  // namespace isthmus::device
