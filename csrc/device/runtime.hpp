// What Isthmus needs of a vendor's device runtime, and nothing of what a vendor calls it. One object a vendor and process; a device is
// an ordinal in every call, never "the current one". Thread-safe but where a comment says otherwise. Errors are Error
// with the vendor, the call and its code in the text; what runs on a stream reports through Stream::status().
//
// Events and signals may end as soon as their last value was seen, gates when their last open() has returned and been passed.
//
// Streams are in order. No order between two streams is assumed but what events, gates and signals say, and none of them may be
// assumed to progress on its own: a plan completes with all of a rank's streams being one queue.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.hpp"

namespace isthmus::device {

// How a stream is made to wait for the host.
enum class GateKind : uint8_t {
  None,         // not at all: the caller has to wait before it submits what comes after
  HostStore,    // opened by a store to memory, from any thread
  RuntimeCall,  // opened by a call of the runtime, which may block
};

struct Capabilities {
  GateKind gate = GateKind::None;
  bool host_access = false;       // the host may read and write what allocate() gives
  bool asynchronous_copy = true;  // copy() returns before the bytes have moved
  bool signals_wake = true;  // make_signal()'s wake is called; else whoever waits for a signal has to look again and again
};

// What a device's arithmetic takes 8-bit floating-point numbers for: the open standard's, or those without infinities and negative zero
// whose exponent is biased by one more. A byte of one kind is another number in the other.
enum class Float8 : uint8_t { Ocp, Fnuz };

enum class Where : uint8_t { Unknown, Registered, Device };  // Unknown: plain host memory, or nobody's
struct PointerInfo {
  Where where = Where::Unknown;
  int device = -1;
  void *there = nullptr;  // Registered: where devices find that byte; null: they do not, or nobody says
};

// What DLPack, the protocol by which libraries lend each other arrays, calls the memory of a vendor's devices: its DLDeviceType.
struct Dlpack {
  int type = 1;    // of memory of one device
  int shared = 0;  // of memory that belongs to all devices of the vendor and has no number; 0: there is none
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual int device() const noexcept = 0;
  // What went wrong on it so far. Steps behind a failed one are skipped; signals and events still happen where the runtime is ours (host),
  // and never where a vendor's device has failed. May be a call of the runtime: not for the hot path.
  virtual Status status() const = 0;
  virtual void *handle() const noexcept { return nullptr; }  // the vendor's, for the adapters of its libraries
  // Between these the stream's device is what the vendor's libraries take for the current one of this thread. What enter() returns is
  // for exit(), on the same thread.
  virtual intptr_t enter() const { return 0; }
  virtual void exit(intptr_t) const noexcept {}
  // Whether the user is recording a graph on it, in which nothing of ours may be.
  virtual bool capturing() const = 0;
  // Stops what runs on it and drops what waits, so that it is soon idle. False: the vendor has no call for that, or it failed.
  virtual bool cut() noexcept { return false; }
  // How often it was stopped: who shares it with others sees that what he had there was dropped.
  virtual uint64_t cuts() const noexcept { return 0; }
};

class Entered {
 public:
  explicit Entered(const Stream &stream) : stream_(stream), before_(stream.enter()) {}
  ~Entered() { stream_.exit(before_); }
  Entered(const Entered &) = delete;
  Entered &operator=(const Entered &) = delete;

 private:
  const Stream &stream_;
  const intptr_t before_;
};

class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream &stream) = 0;  // marks this point of the stream; a later record replaces it
  virtual void hold(
      Stream &stream) const = 0;     // the stream goes on when the marked point is reached; at once if never recorded
  virtual bool reached() const = 0;  // does not wait; true if never recorded
};

// Host to device. Values rise; a step of an operation uses its own.
class Gate {
 public:
  virtual ~Gate() = default;
  virtual void arm(Stream &stream,
                   uint64_t value) = 0;            // what is submitted after it runs once open(value) or more was called
  virtual void open(uint64_t value) noexcept = 0;  // any thread; all that the host wrote before is visible behind the gate
  virtual void poison() noexcept = 0;              // open for ever: nothing waits at it again
};

// Device to host.
class Signal {
 public:
  virtual ~Signal() = default;
  virtual void arm(Stream &stream,
                   uint64_t value) = 0;         // stored when the stream gets there, behind all bytes copied before it
  virtual uint64_t value() const noexcept = 0;  // the last value stored; 0 before
};

// Called by a stream whenever it has stored a signal's value, on a thread of the runtime's: it must only store, count or wake.
using Wake = void (*)(void *context);

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const char *maker() const noexcept = 0;   // who makes the devices, as ranks without a label name their island
  virtual const char *vendor() const noexcept = 0;  // "host", ...
  virtual std::string version() const = 0;          // of the library that was found, for people
  virtual int devices() const = 0;
  virtual Capabilities capabilities(int device) const = 0;
  virtual std::string describe(int device) const = 0;  // "NVIDIA H100 80GB HBM3 at 0000:3b:00.0"
  virtual int numa(int) const { return -1; }           // the node of the host that is nearest to the device, or -1
  virtual Float8 float8(int) const { return Float8::Ocp; }
  virtual Dlpack dlpack() const noexcept { return {}; }
  // The number that DLPack has for the stream of that handle (nullptr: the default one); -1: it has none for streams of such devices.
  // Error(Unsupported) for a stream that it cannot name.
  virtual int64_t dlpack_stream(const void *) const { return -1; }

  virtual std::unique_ptr<Stream> make_stream(int device, const char *name) = 0;  // `name`: static text, for people
  // The user's stream of that handle; ending the object leaves the stream as it is. Error(Unsupported) where there are no such streams.
  virtual std::unique_ptr<Stream> adopt(int device, void *handle) = 0;
  virtual std::unique_ptr<Event> make_event(int device) = 0;
  virtual std::unique_ptr<Gate> make_gate(int device) = 0;
  virtual std::unique_ptr<Signal> make_signal(int device, Wake wake = nullptr, void *context = nullptr) = 0;

  // The stream goes on behind what the vendor's calls left on the device's default stream: some return before their work is done (a copy
  // from pageable memory, a fill), and whoever has made one takes the memory for ready. `event`: one of that device, free for this.
  // Does nothing where all such calls end with their work, or while a graph is recorded that the default stream would become part of.
  virtual void behind_default(Stream &, Event &) {}

  // Submits a copy. Either side is device memory or what device_address() gives of registered memory; at least one is device memory, for
  // between two places of the host some vendors' calls return only when the stream has come to the copy and it is done. Where `cancelled` is set by the
  // time it would run, it is skipped by runtimes that can, which are those whose streams may be held up for good.
  virtual void copy(Stream &stream, void *to, const void *from, size_t bytes,
                    const std::atomic<bool> *cancelled = nullptr) = 0;

  virtual void *allocate(int device, size_t bytes) = 0;  // Error(Resource) if there is none; aligned to 256 bytes
  virtual void release(int device, void *memory) noexcept = 0;

  // Makes host memory reachable for the device: pinned and mapped. Page-aligned. Registering a range twice is an Error(Argument).
  virtual void register_host(int device, void *memory, size_t bytes) = 0;
  // False: it failed, or the device has held up the call for longer than anybody waits. Then the device may still have it, and the memory has
  // to stay where it is until the process ends.
  virtual bool unregister_host(int device, void *memory) noexcept = 0;
  // Where the device finds that byte of registered memory. Error(Argument) if it is not registered.
  virtual void *device_address(int device, const void *memory) const = 0;
  virtual PointerInfo find(const void *memory) const = 0;
  // Before a context of ours first uses the device. Where the program has reset it since the last one did, what we had there is forgotten, and the
  // device is begun anew, as far as the vendor lets it.
  virtual void begin(int) {}
  // A call that the device has held up for longer than anybody waits, and that has not come back; or nullptr.
  virtual const char *stuck(int) const noexcept { return nullptr; }
  // A thread of a caller's has been left behind in that call (static text), or has come back from it: stuck() says so.
  virtual void does_not_come_back(int, const char *) noexcept {}
  virtual void came_back(int) noexcept {}
};

}  // namespace isthmus::device
