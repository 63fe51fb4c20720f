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
// Thread rules. One thread at a time submits copies: the caller's, or the device worker of the context. That thread may call the runtime. The
// progress thread opens gates and looks at signals.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/seen_time.hpp"
#include "base/spin_lock.hpp"
#include "device/runtime.hpp"
#include "messages/engine_names.hpp"

namespace isthmus::messages {

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

  // Each submits the copy of op's message between the user's memory and the message's stage, and sets op->carry.ticket. If the call names a user's
  // stream, the copy comes behind what the stream holds and before what the stream gets later. Each throws what the runtime throws.
  void take(Operation &op) { carry(op, out_); }   // to the stage
  void expect(Operation &op) { carry(op, in_); }  // from the stage, once open() has come to the copy; reserved before
  void put(Operation &op) { carry(op, late_); }   // from the stage, which has the message
  // reserve() gives a copy its place among the copies behind gates. The gate may then be opened before the copy is submitted: a thread that frees
  // device memory may hold up the submission for as long as the device has something to do. Once the gate is made, reserve() allocates nothing and
  // calls no runtime.
  void make_gate() { make(in_); }
  void reserve(Operation &op) noexcept;

  // mark() notes what the user's stream holds now, or the device's default stream where the call names none, for a copy that is submitted later.
  // Each mark takes a place in the stream's queue, and a full queue may wait for what needs a receive that comes later. So of the default stream,
  // where nobody asked for the order of a stream, kMostMarked are noted at one time, and none for the parts of a message; other copies come behind
  // what it holds when they are submitted. Any thread may call forget().
  void mark(Operation &op);
  void forget(Operation &op) noexcept;
  // What `stream` gets later comes behind the copy of `op`. The copy has been submitted, or was reserved and submitted in one go.
  void order(const Operation &op, void *stream);

  // Progress.
  void open(const Operation &op) noexcept { in_.gate->open(op.carry.ticket.load(std::memory_order_relaxed)); }
  bool taken(const Operation &op) const noexcept { return reached(out_, op); }
  bool landed(const Operation &op) const noexcept { return reached(op.carry.port == Port::Expected ? in_ : late_, op); }
  bool busy() const noexcept;           // some copy is under way
  uint64_t signalled() const noexcept;  // a larger number whenever a copy has ended

  void abort() noexcept;  // no gate holds any more
  // After abort(). True: no copy of ours runs any more, or the wait for the copies is given up.
  bool settled(int64_t now_ns) noexcept;

 private:
  struct Lane {
    std::unique_ptr<device::Stream> stream;
    std::unique_ptr<device::Signal> signal;
    std::unique_ptr<device::StreamGate> gate;
    std::unique_ptr<device::Stream> user;  // that was used last, and the events that tie it to ours
    std::unique_ptr<device::Event> before, after;
    std::atomic<bool> made{false};
    std::atomic<uint64_t> armed{0};
  };
  void carry(Operation &op, Lane &lane);
  void make(Lane &lane);
  device::Stream &user(Lane &lane, void *handle);
  static bool reached(const Lane &lane, const Operation &op) noexcept {
    const uint64_t ticket = op.carry.ticket.load(std::memory_order_acquire);
    return ticket != 0 && lane.signal->value() >= ticket;
  }

  device::Runtime &runtime_;
  const int device_;
  std::byte *const arena_;
  const device::Wake wake_;
  void *const context_;
  const bool gates_, wakes_;
  Lane out_, in_, late_;  // to the stage; from the stage, behind gates; from the stage
  static constexpr size_t kMostMarked = 64;
  SpinLock marks_lock_;
  size_t marked_ ISTHMUS_GUARDED_BY(marks_lock_) = 0;
  std::vector<std::unique_ptr<device::Event>> marks_ ISTHMUS_GUARDED_BY(marks_lock_);  // spare
  SeenTime waited_;                                                                    // since the abort, by settled()
  std::atomic<bool> cancelled_{false};
};

}  // namespace isthmus::messages
