// DeviceCopier carries messages between a device's memory and the pinned memory in which links see the messages. A message's bytes lie in pinned
// memory whole. A large message is cut into several (MessageSubmission), so copies, links and the other side's copies overlap.
//
// There are three lanes. A lane is a stream and the signal behind the stream's last copy.
//
//   out    copies to the host, which wait for no peer
//   in     copies to the device, each behind a gate until its message has come, in the order in which the copies were submitted
//   late   copies to the device that are submitted when the message has come
//
// So nothing for which a peer waits ever stands behind a message of that peer, also where all streams of the device are one queue.
//
// A receive behind a gate:
//
//   who submits                      lane `in`                      who drives
//   reserve(): ticket 7
//   expect(): arms the gate at 7
//   submits the copy                 holds at the gate
//                                                                   the message has come, into pinned memory
//                                    copies to the device   <-----  open(): opens the gate at 7
//                                    signal: 7              ----->  landed(): true, ends the operation
//
// A message in parts is tied to the user's stream once, and not with each part (MessageTies). So a part takes three entries of the device's queue behind a
// gate, and two else. The queue is short, and a full one holds up the thread that submits.
//
// Thread rules. One thread at a time submits copies: the caller's, or the device worker of the context. That thread may call the runtime. The
// progress thread opens gates and looks at signals.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "base/seen_time.hpp"
#include "device/runtime.hpp"
#include "messages/engine_names.hpp"
#include "messages/stream_marks.hpp"

namespace isthmus::messages {

class DeviceCopier;
enum class Lane : uint8_t { Out, In, Late };
inline Lane lane_in(const Operation &op) noexcept { return op.carry.port == Port::Expected ? Lane::In : Lane::Late; }
template <class Of>
struct ByLane : std::array<Of, 3> {
  Of &operator[](Lane lane) noexcept { return this->data()[static_cast<size_t>(lane)]; }
  const Of &operator[](Lane lane) const noexcept { return this->data()[static_cast<size_t>(lane)]; }
};

// How the lanes stand to one stream of the user's, for the messages of one call.
struct LaneTie {
  bool behind = false;  // the lane is behind what the stream held at the call
  bool owes = false;    // the stream is not yet behind the lane
};
using LaneTies = ByLane<LaneTie>;

// MessageTies ties the copies of messages to the user's stream: a lane is put behind the stream with the first copy that it is given, and close() puts
// the stream behind the lanes. For a thread that has the message lock meanwhile. It also enters the device.
class MessageTies {
 public:
  MessageTies() = default;
  explicit MessageTies(LaneTies &of) noexcept : ties_(of) {}  // which live longer
  ~MessageTies();
  MessageTies(const MessageTies &) = delete;
  MessageTies &operator=(const MessageTies &) = delete;
  // Before a copier is given them. `op` is what is submitted. Throws what the runtime throws.
  void open(DeviceCopier &copier, const Operation &op);
  void close(void *stream);
  bool opened() const noexcept { return copier_ != nullptr; }

 private:
  friend class DeviceCopier;
  LaneTies own_;
  LaneTies &ties_ = own_;
  DeviceCopier *copier_ = nullptr;
  std::optional<device::Entered> entered_;
  StreamMark *mark_ = nullptr;  // what the stream held, where a copy is submitted later
};

// A lane of a device's copies.
struct LaneState {
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<device::Signal> signal;
  std::unique_ptr<device::StreamGate> gate;
  std::unique_ptr<device::Stream> user;  // that was used last, and the events that tie it to ours
  std::unique_ptr<device::Event> before, after;
  std::atomic<bool> made{false};
  std::atomic<uint64_t> armed{0};
  uint64_t behind_mark = 0;        // the number of the mark behind which the stream was put last
  int64_t behind_default_ns = -1;  // since then it is behind all that the device's default stream held

  device::Stream &users(device::Runtime &runtime, int device, void *handle);
  void order(device::Runtime &runtime, int device,
             void *stream);  // what the user's `stream` gets later comes behind the lane
  bool reached(const Operation &op) const noexcept {
    const uint64_t ticket = op.carry.ticket.load(std::memory_order_acquire);
    return ticket != 0 && signal->value() >= ticket;
  }
  bool busy() const noexcept {
    return made.load(std::memory_order_acquire) && signal->value() < armed.load(std::memory_order_acquire);
  }
};

class DeviceCopier {
 public:
  // `arena`: where the device finds the beginning of this process's arena. A message's place is in the arena, or is one of
  // another rank's receive slots (Operation::send_slot).
  DeviceCopier(device::Runtime &runtime, int device, std::byte *arena, device::Wake wake, void *context);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier &) = delete;
  DeviceCopier &operator=(const DeviceCopier &) = delete;

  bool gates() const noexcept { return gates_; }
  bool wakes() const noexcept { return wakes_; }

  // A stream of the device's. A thread that has entered it (device::Entered) enters the device in none of the calls below. `op` is what is submitted.
  device::Stream &to_enter(const Operation &op);

  // Each submits the copy of op's message between the user's memory and the message's stage, and sets op->carry.ticket. If the call names a user's
  // stream, the copy comes behind what the stream holds and before what the stream gets later; with `ties`, what the stream gets behind close(). A send
  // that was held is tied to the stream by its thread (StreamOrder::settle). Each throws what the runtime throws.
  void take(Operation &op, MessageTies *ties = nullptr) { carry(op, Lane::Out, ties); }  // to the stage
  // From the stage, once open() has come to the copy; reserved before.
  void expect(Operation &op, MessageTies *ties = nullptr) { carry(op, Lane::In, ties); }
  // From the stage, which has the message.
  void put(Operation &op, MessageTies *ties = nullptr) { carry(op, Lane::Late, ties); }
  // reserve() gives a copy its place among the copies behind gates. The gate may then be opened before the copy is submitted: a thread that frees
  // device memory may hold up the submission for as long as the device has something to do. Once the gate is made, reserve() allocates nothing and
  // calls no runtime.
  void make_gate() { made(Lane::In); }
  void reserve(Operation &op) noexcept;

  // mark() notes what the user's stream holds now, or the device's default stream where the call names none, for a copy that is submitted later.
  // Each mark takes a place in the stream's queue, and a full queue may wait for what needs a receive that comes later. So of the default stream,
  // where nobody asked for the order of a stream, kMostMarked are noted at one time, and none for the parts of a message; other copies come behind
  // what it holds when they are submitted. The parts of a message share the mark of a stream that `ties` has. Any thread may call forget().
  void mark(Operation &op, MessageTies *ties = nullptr);
  void forget(Operation &op) noexcept { marks_.give_back(std::exchange(op.carry.begun, nullptr)); }
  // What the stream gets behind close() comes behind the copy of `op`. The copy has been submitted, or was reserved and submitted in one go.
  void order(const Operation &op, MessageTies &ties) const noexcept {
    if (!landed(op)) ties.ties_[lane_in(op)].owes = true;
  }

  // Progress.
  void open(const Operation &op) noexcept { lanes_[Lane::In].gate->open(op.carry.ticket.load(std::memory_order_relaxed)); }
  bool taken(const Operation &op) const noexcept { return lanes_[Lane::Out].reached(op); }
  bool landed(const Operation &op) const noexcept { return lanes_[lane_in(op)].reached(op); }
  bool busy() const noexcept;           // some copy is under way
  uint64_t signalled() const noexcept;  // a larger number whenever a copy has ended

  void abort() noexcept;  // no gate holds any more
  // After abort(). True: no copy of ours runs any more, or the wait for the copies is given up.
  bool settled(int64_t now_ns) noexcept;

 private:
  friend class MessageTies;
  void carry(Operation &op, Lane lane, MessageTies *ties);
  void put_behind(Operation &op, LaneState &lane, bool behind_stream);
  LaneState &made(Lane lane);

  device::Runtime &runtime_;
  const int device_;
  std::byte *const arena_;
  const device::Wake wake_;
  void *const context_;
  const bool gates_, wakes_;
  ByLane<LaneState> lanes_;
  static constexpr size_t kMostMarked = 64;
  StreamMarks marks_;
  SeenTime waited_;  // since the abort, by settled()
  std::atomic<bool> cancelled_{false};
};

}  // namespace isthmus::messages
