// What Isthmus needs of a vendor's device runtime, in names of its own. A process has one object for each vendor. A device
// is an ordinal in every call, never "the current one". All is thread-safe, except where a comment says otherwise. A failed
// call throws Error(Device), whose text has the vendor, the call and its code. What fails on a stream is in Stream::status().
//
// The host and a stream meet at gates (host to device) and signals (device to host):
//
//   host                                       stream of a device
//     gate.arm(stream, 7)       - - - - - - ->   holds here until the gate is open at 7
//     copy(stream, ...)         - - - - - - ->   (waits behind the gate)
//     signal.arm(stream, 7)     - - - - - - ->   (waits behind the copy)
//     writes the bytes to be copied
//     gate.open(7)              ------------->   passes the gate: all that the host wrote is visible
//                                                copies
//     signal.value() is 7       <-------------   stores 7, behind all copied bytes; calls `wake`
//
// An event or a signal may end as soon as its last value was seen. A gate may end when its last open() has returned and the
// stream has passed.
//
// A stream is in order. Between two streams only events, gates and signals make an order. No stream may be assumed to
// progress on its own: a plan completes even where all of a rank's streams are one queue.
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
  HostStore,    // a store to memory opens the gate, from any thread
  RuntimeCall,  // a call of the runtime opens the gate, and may block
};

struct Capabilities {
  GateKind gate = GateKind::None;
  bool host_access = false;       // the host may read and write what allocate() gives
  bool asynchronous_copy = true;  // copy() returns before the bytes have moved
  bool signals_wake = true;       // make_signal()'s wake is called; else a waiter for a signal has to look again and again
};

// The kind of 8-bit floating-point numbers that a device's arithmetic takes: the open standard's, or the kind without
// infinities and negative zero, whose exponent is biased by one more. A byte of one kind is another number in the other
// kind.
enum class Float8 : uint8_t { Ocp, Fnuz };

enum class Where : uint8_t { Unknown, Registered, Device };  // Unknown: plain host memory, or memory of nobody
struct PointerInfo {
  Where where = Where::Unknown;
  int device = -1;
  void *there = nullptr;  // Registered: where devices find that byte; null: they do not find it, or nobody says
};

// The DLDeviceType of a vendor's memory in DLPack, the protocol by which libraries lend each other arrays.
struct Dlpack {
  int type = 1;    // of memory of one device
  int shared = 0;  // of memory without a number that belongs to all devices of the vendor; 0: there is none
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual int device() const noexcept = 0;
  // What has gone wrong on the stream so far. Steps behind a failed step are skipped. Signals and events still happen where
  // the runtime is our own (host), and never where a vendor's device has failed. May call the runtime: not for the hot path.
  virtual Status status() const = 0;
  virtual void *handle() const noexcept { return nullptr; }  // the vendor's, for the adapters of its libraries
  // Between enter() and exit() the vendor's libraries take the stream's device for the current one of this thread. The
  // result of enter() is for exit(), on the same thread.
  virtual intptr_t enter() const { return 0; }
  virtual void exit(intptr_t) const noexcept {}
  // Whether the user is recording a graph on the stream. Nothing of ours may be in such a graph.
  virtual bool capturing() const = 0;
  // Stops what runs on the stream and drops what waits, so the stream is soon idle. False: the vendor has no call for that,
  // or the call failed.
  virtual bool cut() noexcept { return false; }
  // How often the stream was stopped. So a user that shares the stream with others sees that its own work was dropped.
  virtual uint64_t cuts() const noexcept { return 0; }
};

class Entered {  // enter() here, exit() at the end of the block
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
  virtual void record(Stream &stream) = 0;  // marks this point of the stream; a later record() replaces the mark
  virtual void hold(
      Stream &stream) const = 0;  // the stream goes on when the marked point is reached; at once if nothing was ever marked
  virtual bool reached() const = 0;  // does not wait; true if nothing was ever marked
};

// From the host to a device. Values rise. Each step of an operation uses a value of its own.
class StreamGate {
 public:
  virtual ~StreamGate() = default;
  virtual void arm(Stream &stream,
                   uint64_t value) = 0;  // what is submitted later runs once open() was called with this value or more
  virtual void open(uint64_t value) noexcept = 0;  // any thread; behind the gate all is visible that the host wrote before
  virtual void poison() noexcept = 0;              // open for ever: nothing waits at the gate again
};

// From a device to the host.
class Signal {
 public:
  virtual ~Signal() = default;
  virtual void arm(Stream &stream,
                   uint64_t value) = 0;  // is stored when the stream gets there, behind all bytes that were copied before
  virtual uint64_t value() const noexcept = 0;  // the last value stored; 0 before
};

// A stream calls this function whenever the stream has stored a signal's value, on a thread of the runtime's. The function
// must only store, count or wake.
using Wake = void (*)(void *context);

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const char *maker() const noexcept = 0;   // who makes the devices: so ranks without a label name their island
  virtual const char *vendor() const noexcept = 0;  // "host", ...
  virtual std::string version() const = 0;          // the version of the library that was found, for people
  virtual int devices() const = 0;
  virtual Capabilities capabilities(int device) const = 0;
  virtual std::string describe(int device) const = 0;  // "NVIDIA H100 80GB HBM3 at 0000:3b:00.0"
  virtual int numa(int) const { return -1; }           // the host's node that is nearest to the device, or -1
  virtual Float8 float8(int) const { return Float8::Ocp; }
  virtual Dlpack dlpack() const noexcept { return {}; }
  // The number that DLPack has for the stream of that handle (nullptr: the default stream). -1: DLPack has no numbers for
  // streams of such devices. Error(Unsupported): DLPack cannot name this stream.
  virtual int64_t dlpack_stream(const void *) const { return -1; }

  virtual std::unique_ptr<Stream> make_stream(int device, const char *name) = 0;  // `name`: static text, for people
  // The user's stream of that handle. The end of the object leaves the stream as it is. Error(Unsupported): there are no
  // such streams.
  virtual std::unique_ptr<Stream> adopt(int device, void *handle) = 0;
  virtual std::unique_ptr<Event> make_event(int device) = 0;
  virtual std::unique_ptr<StreamGate> make_gate(int device) = 0;
  virtual std::unique_ptr<Signal> make_signal(int device, Wake wake = nullptr, void *context = nullptr) = 0;

  // Marks what the vendor's calls have left on the device's default stream. Some calls return before their work is done (a
  // copy from pageable memory, a fill), and their caller takes the memory for ready. `event` is one of that device, free for
  // this use. False: nothing is marked, as all such calls end with their work, or as a graph is recorded of which the default
  // stream would become a part.
  virtual bool mark_default(int, Event &) { return false; }
  // The stream goes on behind that mark.
  void behind_default(Stream &stream, Event &event) {
    if (mark_default(stream.device(), event)) event.hold(stream);
  }

  // Submits a copy. Each side is device memory, or what device_address() gives of registered memory. At least one side is
  // device memory: between two places of the host some vendors' calls return only when the stream has made the copy. Where
  // `cancelled` is set by the time that the copy would run, runtimes that can skip the copy: those whose streams may be held
  // up for good.
  virtual void copy(Stream &stream, void *to, const void *from, size_t bytes,
                    const std::atomic<bool> *cancelled = nullptr) = 0;

  virtual void *allocate(int device, size_t bytes) = 0;  // aligned to 256 bytes; throws where no memory is left
  virtual void release(int device, void *memory) noexcept = 0;

  // Makes host memory, aligned to pages, reachable for the device: pinned and mapped. Error(Argument): the range is
  // registered already. Error(Resource): the host can lock no more memory.
  virtual void register_host(int device, void *memory, size_t bytes) = 0;
  // False: the call failed, or the device has held up the call for longer than anybody waits. Then the device may still have
  // the memory, and the memory has to stay where it is until the process ends.
  virtual bool unregister_host(int device, void *memory) noexcept = 0;
  // Where the device finds that byte of registered memory. Error(Argument): the memory is not registered.
  virtual void *device_address(int device, const void *memory) const = 0;
  virtual PointerInfo find(const void *memory) const = 0;
  // Called before a context of ours first uses the device. Where the program has reset the device since the last context,
  // what we had there is forgotten. The device is begun anew, as far as the vendor allows.
  virtual void begin(int) {}
  // A call that has not come back, and that the device has held up for longer than anybody waits; or nullptr.
  virtual const char *stuck(int) const noexcept { return nullptr; }
  // A thread of a caller's has been left behind in that call (static text), or has come back from the call. stuck() says so.
  virtual void does_not_come_back(int, const char *) noexcept {}
  virtual void came_back(int) noexcept {}
};

}  // namespace isthmus::device
