// An Operation is one call in flight: what was asked, how far the operation is, how the operation ended. Operations are pooled, and their
// vectors keep their capacity. So nothing is allocated once a shape has been seen.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/fork.hpp"
#include "base/spin_lock.hpp"
#include "device/runtime.hpp"
#include "engine/bounce.hpp"
#include "link/frame.hpp"
#include "p2p/recv_slots.hpp"
#include "p2p/staging_pool.hpp"
#include "plan/cursor.hpp"
#include "plan/plan.hpp"

// Classes of the floors above. These floors get back to their objects by an operation.
namespace isthmus::messages {
class Matcher;
}
namespace isthmus::rank {
class Rank;
}

namespace isthmus::engine {

class RankCore;

struct Call {  // what the user asked for, validated, in bytes
  Collective collective = Collective::Barrier;
  DType dtype = DType::UInt8;
  RedOp op = RedOp::Sum;
  int root = 0;  // or the peer of a send or receive (-1: any source)
  int tag = 0;
  const std::byte *input = nullptr;
  std::byte *output = nullptr;
  uint64_t bytes = 0;  // of the equal block or message; v-collectives: of the largest block that this rank knows
  double scale = 1;
  uint64_t factor = 1;  // the same for integers
  double timeout = 0;   // seconds; > 0
  bool device =
      false;  // the device works on `input` and `output`: memory of the device, or pinned memory that the device reaches
  // Where the device finds what is given and what is received, in pinned memory of the host. Null: the memory is not pinned, or the processor
  // works on the memory.
  std::byte *input_there = nullptr, *output_there = nullptr;
  bool on_stream = false;    // ordered behind what the user's stream holds now, and before what the stream gets later
  bool order_later = false;  // "before what the stream gets later" holds only by isthmus_work_order()
  bool by_call = false;  // host memory and a stream: the call waits for the stream before, and for the end of the operation
  void *stream = nullptr;  // that stream's handle
  bool commit = false;     // done on all ranks or on none, which all ranks ask for, or none
};

enum class Phase : uint8_t { Fresh, Posted, Comparing, Running, Draining };

// How a message gets to or from device memory (device_copier.hpp).
enum class Port : uint8_t {
  None,      // the message is in host memory
  Taken,     // a send: copied out, then sent
  Expected,  // a receive whose copy stands behind a gate
  Worker,    // a receive whose copy is submitted by the device worker when the message has come
  Caller,    // a receive whose copy is submitted by the caller, who waits for the message
  Library,   // the vendor's library carries the message (island_lane.hpp)
};

struct Operation;

struct RoomWait {            // of a collective for its slots and its scratch
  bool lacks = false;        // there was no room for them
  int64_t since_ns = 0;      // since then; and
  int64_t ask_again_ns = 0;  // it does not ask before, or
  uint64_t given_back = 0;   // until more has been given back than then
};

// How far a collective is, and what it has been lent. Owned by the thread with the right to execute; before the operation is in the queue, by the
// thread that submits.
struct CollectiveRun {
  Phase phase = Phase::Fresh;
  uint32_t next_rank = 0;   // one-hop, Comparing: first rank not yet seen
  uint32_t told_rank = 0;   // Comparing: first rank that was not told its size
  plan::Cursor at;          // where the host list stands
  bool streams = false;     // steps with `stream` write past the caches
  int32_t blocked_on = -1;  // rank that the last try waited for
  uint64_t ring = 0;  // where its slots begin in the arena; set at submission for plans with device work, else at the start
  uint64_t fixed_turn = 0;          // where they begin in a ring at a fixed place, of every rank
  std::atomic<bool> broken{false};  // not all of its device work was submitted
  // Its copies in may begin before the operation before it has ended, and so may its host list. By the thread that submits.
  std::atomic<bool> comes_early{false};
  uint64_t behind = 0;   // the last operation before it that wrote a ring, set when the host list begins
  bool entered = false;  // its turn has come: all before it have ended
  uint64_t scratch = 0;  // where its scratch begins in the arena, for plans with device work; 0: the host executor's own
  bool lent = false;     // of these, something is of the rank's Rings
  RoomWait room;
  bool on_device = false;                        // it has memory of the device's on its way (DeviceExecutor)
  bool waits_for_ranks = false;                  // the device's QuietTime has counted it
  bool lent_input = false, lent_output = false;  // of these, memory that stands for the user's
  Bounce bounce;                                 // host memory of the user that a device has to work on goes through it
};

// A send or a receive. Under the match lock, but for what is said otherwise.
struct MessageRun {
  uint64_t id = 0;                    // of its sender's
  std::atomic<uint64_t> received{0};  // bytes. By who has the link's turn
  Operation *next = nullptr;          // in the list that it is in
  int32_t source = -1;                // of a receive: who sends it
  int32_t lies = -1;                  // in this receive slot, from where a processor has to bring it
  bool held = false;                  // its message was put aside whole, and waits for its place
  p2p::SlotUse slot;                  // of a message that goes through receive slots
  p2p::Place place;                   // the pinned memory in which links find a message of device memory: its own, or a slot
  bool grouped = false;               // submitted with others at the end of a group. Set before
  bool ungated = false;               // a receive that found no place behind a gate. By the thread that submits
  uint64_t number = 0;  // of the messages with its peer that a library may carry; 0: it has none. By the thread that submits
  bool counted = false;  // the message has been counted. By the same
};

// A long message is cut into parts, an operation each.
struct MessageCut {
  uint64_t whole = 0;     // bytes of the message that this is a part of; 0: it is no part
  uint32_t part = 0;      // and which
  int32_t source = -1;    // of the whole message from any rank: who sends it, once the first part has come (match lock)
  bool is_whole = false;  // it is the whole message
  std::vector<Operation *> parts;  // of a message that is ordered later, a reference each
};

// What a user's stream held at a call, for copies that are submitted later: of all parts of a message, which share the mark. The device copier's.
struct StreamMark {
  std::unique_ptr<device::Event> event;
  uint64_t number = 0;  // another number with each record
  uint32_t users = 0;   // operations that have the mark; under the lock of the copier's marks
};

// The copy of a message from or to a device (device_copier.hpp).
struct MessageCopy {
  Port port = Port::None;
  std::atomic<bool> arrived{false};  // the whole message is there
  std::atomic<uint64_t> ticket{0};   // of its copy; 0: not submitted
  Operation *next = nullptr;         // in the order of the gates
  StreamMark *begun = nullptr;       // what the stream held at the call, where the copy is submitted later
  std::byte *send_slot = nullptr;    // a send's: where this rank's device finds the slot; null: it goes by the link
  bool waits_for_rank = false;       // a receive behind a gate, which the device's QuietTime has counted
  bool unplaced = false;             // a send that waits for pinned memory or a slot
  bool starved = false;              // and found none of the first
  bool held = false;  // a send on a stream, which waited for them: its thread ties it to the stream (StreamOrder::settle)
  std::unique_ptr<std::byte[]> spilled;  // a send that has left its place: its bytes
};

enum class Callback : uint8_t { None, Due, Returned };  // of the program, where the operation has one

// Where a device comes to the end of an operation behind which the program's streams come later (collective/end_marks.hpp). A mark is used again,
// for the operation of that number, with the lock of those who submit.
struct EndMark {
  std::unique_ptr<device::Event> event;
  uint64_t sequence = 0;
};

// `ended` is set (release) after result, text and ranks.
struct OperationEnd {
  std::atomic<uint32_t> ended{0};
  Code result = Code::Ok;
  std::string text;
  std::vector<int> ranks;  // see Status; their numbers for people (Identity::number)
  SpinLock lock;
  void (*done)(void *, int, const char *) ISTHMUS_GUARDED_BY(lock) = nullptr;
  void *context ISTHMUS_GUARDED_BY(lock) = nullptr;
  std::atomic<Callback> callback{Callback::None};
  // A group, or a message in parts: ended when `children` falls to 0.
  std::atomic<uint32_t> children{0};
  Operation *parent = nullptr;  // of a child
  EndMark *mark = nullptr;      // of a collective that is ordered later
};

// The blocks of what the user gave and gets: input_displ, input_bytes, output_displ, output_bytes, one after the other.
struct OperandBlocks {
  std::vector<uint64_t> values;
  uint32_t input = 0, output = 0;  // blocks of each
  plan::Operands operands() const noexcept {
    const uint64_t *b = values.data();
    return {{b, input}, {b + input, input}, {b + 2 * input, output}, {b + 2 * input + output, output}};
  }
};

// The frame of a send, while the link has it.
struct MessageFrame : link::Outgoing {
  messages::Matcher *matcher = nullptr;  // whose frame it is
  Operation *operation = nullptr;        // the send
};

// What the memory held that a failed operation has written, where the program wants it back.
struct KeptOutput {
  uint64_t size = 0;  // that the operation writes, where it is to be kept
  std::unique_ptr<std::byte[]> bytes;
};

struct OperationLife {
  std::atomic<uint32_t> references{0};
  Operation *next = nullptr;  // in the rank's queue, the list of callbacks that are due, or the pool
  bool inline_op = false;     // belongs to its rank, not to the pool
};

struct OperationTime {
  int64_t submitted_ns = 0, ended_ns = 0, deadline_ns = 0;
  int64_t step_ns = 0;  // since when a collective's step is tried, or waited for (StepTracer); 0: it is not
};

struct Operation {
  Call call;
  std::string label;
  uint64_t sequence = 0, digest = 0;
  OperationTime time;
  rank::Rank *rank = nullptr;              // null: not submitted
  RankCore *core = nullptr;                // of that rank
  std::shared_ptr<void> keep;              // the rank lives as long as its operations
  std::shared_ptr<const plan::Plan> plan;  // null: one-hop path (cells), or point to point
  OperandBlocks blocks;

  CollectiveRun run;
  static constexpr uint32_t kMostSlots = 64;
  // Frames of the chunk in that slot whose data a link may still read (plan: Taken).
  std::atomic<uint32_t> in_slot[kMostSlots] = {};

  MessageRun message;
  MessageCut cut;
  MessageCopy carry;
  MessageFrame frame;

  OperationEnd end;
  KeptOutput kept;

  const Birth birth{};
  OperationLife life;
  void reset() noexcept ISTHMUS_UNCHECKED;  // nobody else has it any more. All but capacities and references

  plan::Operands operands() const noexcept { return blocks.operands(); }
  // How far the blocks of what the user gave reach. 0 where nothing was given, but for the result of a reduce, which a library may use on
  // every rank.
  uint64_t given_input() const noexcept { return call.input ? reach(operands().input_displ, operands().input_bytes) : 0; }
  uint64_t given_output() const noexcept {
    return call.output || call.collective == Collective::Reduce ? reach(operands().output_displ, operands().output_bytes)
                                                                : 0;
  }
  static uint64_t reach(std::span<const uint64_t> displ, std::span<const uint64_t> bytes) noexcept {
    uint64_t end = 0;
    for (size_t b = 0; b < bytes.size(); ++b) end = std::max(end, bytes[b] ? displ[b] + bytes[b] : 0);
    return end;
  }
  // Where links read or write the message.
  std::byte *data(std::byte *arena) const noexcept {
    if (carry.spilled) return carry.spilled.get();
    if (carry.port != Port::None) return arena + message.place.piece.offset;
    return call.collective == Collective::Send ? const_cast<std::byte *>(call.input) : call.output;
  }
  bool is_p2p() const noexcept { return is_message(call.collective); }
  // Before it is submitted, once the caller's stream has come so far. Throws Error(Resource).
  void keep_output();
  bool over() const noexcept { return end.ended.load(std::memory_order_acquire) != 0; }
  void call_back();  // the operation is over; once
};

class OperationPool {  // thread-safe
 public:
  static OperationPool &instance();
  Operation *take();  // with references == 1, and everything at its default but for capacities
  static void retain(Operation *op) noexcept { op->life.references.fetch_add(1, std::memory_order_relaxed); }
  void release(Operation *op) noexcept;

 private:
  SpinLock lock_;
  Operation *free_ ISTHMUS_GUARDED_BY(lock_) = nullptr;
};

// Pooled frames that belong to no operation alone: several frames of one plan may be in a link at once. `finished` must be give_frame.
link::Outgoing *take_frame();
void give_frame(link::Outgoing &frame);

// Ends an operation at the time `ended_ns`:
//
// 1. Sets the result.
// 2. Counts down the group's children, and ends the group with its last child.
// 3. Wakes the waiters of this process. An inline op wakes no thread: its only waiter runs the op, or looks again soon.
// 4. Puts the callback on the list of those that are due (Completions), or drops the engine's reference.
void finish_operation(Operation *op, Code result, std::string text, int64_t ended_ns) noexcept;

}  // namespace isthmus::engine
