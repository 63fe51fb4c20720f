// Carries messages between a device's memory and the pinned memory in which links see them. A message's bytes lie there whole; a large
// message is several (MessageSubmission), so that copies, links and the other side's copies overlap.
//
// Three lanes, each a stream and the signal behind its last copy: `out` holds copies to the host, which wait for nobody; `in` copies
// to the device that stand behind a gate until the message has come, in the order in which they were submitted; `late` copies to
// the device that are submitted when it has come. So nothing that a peer waits for ever stands behind a message of its own, also
// where all streams of the device are one queue.
//
// Thread rules. Copies are submitted by one thread at a time, which may call the runtime: the caller's, or the device worker of the context.
// The progress thread opens gates and looks at signals.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/spin_lock.hpp"
#include "device/runtime.hpp"
#include "messages/engine_names.hpp"

namespace isthmus::messages {

class DeviceCopier {
 public:
  // `arena`: where the device finds the beginning of this process's arena. A message's place is there, or a slot of
  // another rank's receive slots (Operation::send_slot).
  DeviceCopier(device::Runtime &runtime, int device, std::byte *arena, device::Wake wake, void *context);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier &) = delete;
  DeviceCopier &operator=(const DeviceCopier &) = delete;

  bool gates() const noexcept { return gates_; }
  bool wakes() const noexcept { return wakes_; }

  // Submit the copy of op's message between the user's memory and its stage, and set op->ticket. Behind the user's stream and before
  // what it gets later, if the call names one. Throw what the runtime throws.
  void take(Operation &op) { carry(op, out_, true, false); }   // to the stage
  void expect(Operation &op) { carry(op, in_, false, true); }  // from the stage, once open() has come to it; reserved before
  void put(Operation &op) { carry(op, late_, false, false); }  // from the stage, which has the message
  // The place of a copy among those behind gates: its gate may be opened before the copy is submitted, which whoever frees device memory
  // may hold up for as long as the device has something to do. Once made, allocates nothing and calls no runtime.
  void make_gate() { make(in_, true); }
  void reserve(Operation &op) noexcept;

  // What the user's stream holds now, for a copy that is submitted later. forget() by any thread.
  void mark(Operation &op);
  void forget(Operation &op) noexcept;
  // What `stream` gets later comes behind the copy of `op`, which has been submitted, or reserved and submitted in one go.
  void order(const Operation &op, void *stream);

  // Progress.
  void open(const Operation &op) noexcept { in_.gate->open(op.ticket.load(std::memory_order_relaxed)); }
  bool taken(const Operation &op) const noexcept { return reached(out_, op); }
  bool landed(const Operation &op) const noexcept { return reached(op.port == Port::Expected ? in_ : late_, op); }
  bool busy() const noexcept;           // some copy is under way
  uint64_t signalled() const noexcept;  // more whenever one has ended

  void abort() noexcept;  // no gate holds any more
  // After abort(): no copy of ours runs any more, or there is no waiting for it.
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
  void carry(Operation &op, Lane &lane, bool out, bool gated);
  void make(Lane &lane, bool gated);
  device::Stream &user(Lane &lane, void *handle);
  static bool reached(const Lane &lane, const Operation &op) noexcept {
    const uint64_t ticket = op.ticket.load(std::memory_order_acquire);
    return ticket != 0 && lane.signal->value() >= ticket;
  }

  device::Runtime &runtime_;
  const int device_;
  std::byte *const arena_;
  const device::Wake wake_;
  void *const context_;
  const bool gates_, wakes_;
  Lane out_, in_, late_;
  SpinLock marks_lock_;
  std::vector<std::unique_ptr<device::Event>> marks_ ISTHMUS_GUARDED_BY(marks_lock_);  // spare
  std::atomic<int64_t> aborted_ns_{0};
  std::atomic<bool> cancelled_{false};
};

}  // namespace isthmus::messages
