#include "device/host.hpp"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <map>
#include <thread>
#include <vector>

#include "base/copy.hpp"
#include "base/clock.hpp"
#include "base/doorbell.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "base/log.hpp"
#include "device/abandoned.hpp"

namespace isthmus::device {
namespace {

constexpr uint64_t kQueue = 256;           // commands of a stream that may wait before its queue grows
constexpr int64_t kNap = 50'000'000;       // longest sleep at a gate before the thread looks whether it was abandoned
constexpr int64_t kLong = 60'000'000'000;  // longest sleep of a thread whose bell is rung for everything
constexpr int64_t kForever = std::numeric_limits<int64_t>::max();
constexpr int64_t kSpin = 20'000;             // before the first sleep
constexpr int64_t kPatience = 2'000'000'000;  // how long the end of a stream waits for what was submitted
constexpr int64_t kLastPatience =
    200'000'000;  // how long, after that, the end of a stream waits for a thread that is in a call
constexpr uint64_t kOpen = ~uint64_t{0};

// The doorbell of all threads that wait for a counter. There is one for all, because a thread that sees a counter's value
// may end the counter at once, and the bell is rung after that.
Doorbell the_bell;
const InChild renews_bell([](void *) noexcept { new (&the_bell) Doorbell; });

// A number that only rises.
struct HostCounter {
  std::atomic<uint64_t> value{0};
  void raise(uint64_t v) noexcept {
    uint64_t seen = value.load(std::memory_order_relaxed);
    while (seen < v && !value.compare_exchange_weak(seen, v, std::memory_order_release, std::memory_order_relaxed)) {}
    the_bell.ring();
  }
  bool at(uint64_t v) const noexcept { return value.load(std::memory_order_acquire) >= v; }
};

// Waits until `ready()`, or until `stop()`, or until the deadline. Spins first. Returns ready().
template <class R, class S>
bool wait_for(Doorbell &bell, R ready, S stop, int64_t deadline, int64_t longest = kLong) noexcept {
  const int64_t begin = now_ns();
  for (int i = 0; i < 1'000'000; ++i) {
    if (ready()) return true;
    if (stop()) return false;
    if ((i & 63) == 63) {
      const int64_t now = now_ns();
      if (now - begin > kSpin || now >= deadline) break;
    }
  }
  while (true) {
    Nap nap(bell);
    if (ready()) return true;
    const int64_t left = deadline - now_ns();
    if (stop() || left <= 0) return false;
    nap.sleep(std::min(left, longest));
  }
}

struct Command {
  enum class Kind : uint8_t { Copy, Wait, Raise, Call, Stop };
  Kind kind = Kind::Stop;
  HostCounter *counter = nullptr;  // Wait, Raise
  uint64_t value = 0;              // Wait, Raise; Copy: bytes
  void *to = nullptr;              // Copy
  const void *from = nullptr;
  const std::atomic<bool> *cancelled = nullptr;
  Wake wake = nullptr;  // Raise: called afterwards
  void *context = nullptr;
  const char *what = nullptr;  // Call
  void (*function)() = nullptr;
  Status (*invoke)(void (*)(), const HostStream::Arguments &) = nullptr;
  HostStream::Arguments arguments;
};

// The part of a stream that the stream shares with its thread. A thread that is left behind keeps the part alive.
struct CommandQueue {
  explicit CommandQueue(const char *stream_name) : name(stream_name) {}
  const char *name;
  // A ring that doubles when it is full. A thread that submits never waits, since what would make room may need that thread.
  mutable Mutex ring_mutex;
  std::vector<Command> commands ISTHMUS_GUARDED_BY(ring_mutex) = std::vector<Command>(kQueue);
  std::atomic<uint64_t> submitted{0}, done{0};
  Doorbell work, room;  // where the thread sleeps; where the threads sleep that wait for it
  std::atomic<bool> abandoned{false}, ended{false}, failed{false};
  std::atomic<const char *> inside{nullptr};
  mutable Mutex mutex;
  Status status ISTHMUS_GUARDED_BY(mutex);

  void report(Status s) {
    const Lock lock(mutex);
    if (status.ok()) status = std::move(s);
    failed.store(true, std::memory_order_release);
  }

  void push(const Command &c) {
    const Lock lock(ring_mutex);
    const uint64_t at = submitted.load(std::memory_order_relaxed), first = done.load(std::memory_order_acquire);
    if (at - first >= commands.size()) {
      std::vector<Command> more(2 * commands.size());
      for (uint64_t i = first; i < at; ++i) more[i % more.size()] = commands[i % commands.size()];
      commands.swap(more);
    }
    commands[at % commands.size()] = c;
    submitted.store(at + 1, std::memory_order_release);
    work.ring();
  }
  Command take(uint64_t at) const {
    const Lock lock(ring_mutex);
    return commands[at % commands.size()];
  }

  bool gone() const noexcept { return abandoned.load(std::memory_order_acquire); }

  // False: the stream ends.
  bool run(const Command &c) {
    switch (c.kind) {
      case Command::Kind::Copy:
        if (!failed.load(std::memory_order_relaxed) && !(c.cancelled && c.cancelled->load(std::memory_order_acquire)))
          copy_bytes(c.to, c.from, c.value);
        return true;
      case Command::Kind::Wait:
        wait_for(
            the_bell, [&] { return c.counter->at(c.value); }, [&] { return gone(); }, kForever, kNap);
        return !gone();
      case Command::Kind::Raise:
        c.counter->raise(c.value);
        if (c.wake) c.wake(c.context);
        return true;
      case Command::Kind::Call: {
        if (failed.load(std::memory_order_relaxed)) return true;
        inside.store(c.what, std::memory_order_release);
        Status s = c.invoke(c.function, c.arguments);
        inside.store(nullptr, std::memory_order_release);
        if (gone()) return false;
        if (!s.ok()) report(std::move(s));
        return true;
      }
      case Command::Kind::Stop: return false;
    }
    return false;
  }

  void loop() {
    while (true) {
      const uint64_t next = done.load(std::memory_order_relaxed);
      wait_for(
          work, [&] { return submitted.load(std::memory_order_acquire) > next; }, [&] { return gone(); }, kForever);
      if (gone() || !run(take(next))) break;
      done.store(next + 1, std::memory_order_release);
      room.ring();
    }
    ended.store(true, std::memory_order_release);
    room.ring();
  }
};

class ThreadStream final : public HostStream {
 public:
  ThreadStream(int device, const char *name)
      : device_(device), queue_(std::make_shared<CommandQueue>(name)), thread_([q = queue_] {
          // A vendor's library writes to sockets whose other end may be gone. Such a write must not end the process.
          sigset_t set;
          sigemptyset(&set);
          sigaddset(&set, SIGPIPE);
          pthread_sigmask(SIG_BLOCK, &set, nullptr);
          q->loop();
        }) {}

  ~ThreadStream() override {
    if (!birth_.here()) {  // the thread is the parent's
      thread_.detach();
      return;
    }
    const auto ended = [&] { return queue_->ended.load(std::memory_order_acquire); };
    const auto never = [] { return false; };
    if (!queue_->gone()) {
      queue_->push(Command{});  // Stop
      wait_for(queue_->room, ended, never, now_ns() + kPatience);
      if (!ended()) abandon();
    }
    const bool in_call = queue_->inside.load(std::memory_order_acquire) != nullptr;  // else the thread comes out by itself
    if (wait_for(queue_->room, ended, never, now_ns() + (in_call ? kLastPatience : kPatience))) {
      thread_.join();
      return;
    }
    const char *where = queue_->inside.load(std::memory_order_acquire);
    ISTHMUS_WARN("a thread of stream '{}' is stuck in {} and is left behind: the library has no call that ends it",
                 queue_->name, where ? where : "its last step");
    count_abandoned_thread();
    thread_.detach();
  }

  int device() const noexcept override { return device_; }
  Status status() const override {
    const Lock lock(queue_->mutex);
    if (queue_->status.ok() && queue_->gone()) {
      const char *where = inside();
      return {Code::System, formatted("stream '{}' runs no more: its thread is stuck in {}; start a new process",
                                      queue_->name, where ? where : "a library that has no abort")};
    }
    return queue_->status;
  }
  bool capturing() const override { return false; }

  bool drain(int64_t deadline_ns) override {
    const uint64_t all = queue_->submitted.load(std::memory_order_relaxed);
    return wait_for(
        queue_->room, [&] { return queue_->done.load(std::memory_order_acquire) >= all; },
        [&] { return queue_->ended.load(std::memory_order_acquire); }, deadline_ns);
  }
  const char *inside() const noexcept override { return queue_->inside.load(std::memory_order_acquire); }
  bool usable() const noexcept override { return !queue_->gone(); }
  void abandon() noexcept override {
    queue_->abandoned.store(true, std::memory_order_release);
    queue_->work.ring();
    queue_->room.ring();
  }

  void submit(const Command &c) {
    if (!queue_->gone()) queue_->push(c);  // an abandoned stream drops what is submitted
  }

 protected:
  void submit_call(const char *what, void (*function)(), Invoke invoke, const Arguments &arguments) override {
    Command c;
    c.kind = Command::Kind::Call;
    c.what = what;
    c.function = function;
    c.invoke = invoke;
    c.arguments = arguments;
    submit(c);
  }

 private:
  const int device_;
  const Birth birth_;
  const std::shared_ptr<CommandQueue> queue_;
  std::thread thread_;
};

void submit(Stream &stream, Command::Kind kind, HostCounter &counter, uint64_t value, Wake wake = nullptr,
            void *context = nullptr) {
  Command c;
  c.kind = kind;
  c.counter = &counter;
  c.value = value;
  c.wake = wake;
  c.context = context;
  static_cast<ThreadStream &>(stream).submit(c);
}

class HostEvent final : public Event {
 public:
  void record(Stream &stream) override { submit(stream, Command::Kind::Raise, counter_, ++recorded_); }
  void hold(Stream &stream) const override {
    if (recorded_ > 0) submit(stream, Command::Kind::Wait, counter_, recorded_);
  }
  bool reached() const override { return counter_.at(recorded_); }

 private:
  mutable HostCounter counter_;
  std::atomic<uint64_t> recorded_{0};
};

class HostGate final : public StreamGate {
 public:
  void arm(Stream &stream, uint64_t value) override { submit(stream, Command::Kind::Wait, counter_, value); }
  void open(uint64_t value) noexcept override { counter_.raise(value); }
  void poison() noexcept override { counter_.raise(kOpen); }

 private:
  HostCounter counter_;
};

class HostSignal final : public Signal {
 public:
  HostSignal(Wake wake, void *context) : wake_(wake), context_(context) {}
  void arm(Stream &stream, uint64_t value) override {
    submit(stream, Command::Kind::Raise, counter_, value, wake_, context_);
  }
  uint64_t value() const noexcept override { return counter_.value.load(std::memory_order_acquire); }

 private:
  HostCounter counter_;
  const Wake wake_;
  void *const context_;
};

class HostRuntime final : public Runtime {
 public:
  const char *maker() const noexcept override { return "host"; }
  const char *vendor() const noexcept override { return "host"; }
  std::string version() const override { return "1"; }
  int devices() const override { return 1; }
  Capabilities capabilities(int) const override { return {GateKind::HostStore, true, true, true}; }
  std::string describe(int) const override { return "host memory"; }

  std::unique_ptr<Stream> make_stream(int device, const char *name) override {
    check(device);
    return std::make_unique<ThreadStream>(device, name);
  }
  std::unique_ptr<Stream> adopt(int, void *) override {
    fail(Code::Unsupported, "host ranks have no streams of their own: give no stream");
  }
  std::unique_ptr<Event> make_event(int device) override {
    check(device);
    return std::make_unique<HostEvent>();
  }
  std::unique_ptr<StreamGate> make_gate(int device) override {
    check(device);
    return std::make_unique<HostGate>();
  }
  std::unique_ptr<Signal> make_signal(int device, Wake wake, void *context) override {
    check(device);
    return std::make_unique<HostSignal>(wake, context);
  }

  void copy(Stream &stream, void *to, const void *from, size_t bytes, const std::atomic<bool> *cancelled) override {
    if (bytes == 0) return;
    Command c;
    c.kind = Command::Kind::Copy;
    c.to = to;
    c.from = from;
    c.value = bytes;
    c.cancelled = cancelled;
    static_cast<ThreadStream &>(stream).submit(c);
  }

  void *allocate(int device, size_t bytes) override {
    check(device);
    const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    void *p = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
    if (!p) fail(Code::Resource, "no {} bytes of host memory to be had", bytes);
    const Lock lock(mutex_);
    allocated_.emplace(reinterpret_cast<uintptr_t>(p), rounded);
    return p;
  }
  void release(int, void *memory) noexcept override {
    const Lock lock(mutex_);
    if (allocated_.erase(reinterpret_cast<uintptr_t>(memory)) != 0) std::free(memory);
  }

  void register_host(int device, void *memory, size_t bytes) override {
    check(device);
    const auto at = reinterpret_cast<uintptr_t>(memory);
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    if (!memory || bytes == 0 || at % page != 0)
      fail(Code::Argument, "registration of {} bytes at {}: whole pages are registered", bytes, memory);
    const Lock lock(mutex_);
    const auto next = registered_.lower_bound(at);
    if ((next != registered_.end() && next->first - at < bytes) ||
        (next != registered_.begin() && at - std::prev(next)->first < std::prev(next)->second))
      fail(Code::Argument, "registration of {} bytes at {}: a part of it is registered already", bytes, memory);
    registered_.emplace(at, bytes);
  }
  bool unregister_host(int, void *memory) noexcept override {
    const Lock lock(mutex_);
    registered_.erase(reinterpret_cast<uintptr_t>(memory));
    return true;
  }
  void *device_address(int device, const void *memory) const override {
    check(device);
    const SharedLock lock(mutex_);
    if (!inside(registered_, memory)) fail(Code::Argument, "memory at {} is not registered", memory);
    return const_cast<void *>(memory);
  }
  PointerInfo find(const void *memory) const override {
    const SharedLock lock(mutex_);
    if (inside(allocated_, memory)) return {Where::Device, 0};
    if (inside(registered_, memory)) return {Where::Registered, 0, const_cast<void *>(memory)};
    return {};
  }

 private:
  using Ranges = std::map<uintptr_t, size_t>;
  static constexpr size_t kAlignment = 256;

  static bool inside(const Ranges &ranges, const void *memory) {
    const auto at = reinterpret_cast<uintptr_t>(memory);
    const auto after = ranges.upper_bound(at);
    return after != ranges.begin() && at - std::prev(after)->first < std::prev(after)->second;
  }
  static void check(int device) {
    if (device != 0) fail(Code::Argument, "device {} of the host runtime, which has one: 0", device);
  }

  mutable SharedMutex mutex_;
  Ranges allocated_ ISTHMUS_GUARDED_BY(mutex_);
  Ranges registered_ ISTHMUS_GUARDED_BY(mutex_);
};

PerProcess<HostRuntime> the_runtime;

}  // namespace

Runtime &host_runtime() { return *the_runtime; }

}  // namespace isthmus::device
