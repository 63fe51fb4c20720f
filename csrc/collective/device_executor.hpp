// The device side of a member whose rank works on a device's memory or is served by a vendor's library: the stream, the library's
// communicator if there is one, and the counters in which the device list of a plan and its host list meet. Device work is submitted
// by the thread that submits the operation; the progress thread only opens gates and reads signals, which are stores and loads.
//
// Two streams. Stages that say `beside` stand on the second, each behind all that the first was given before it; the first takes the second
// up again at the end of the operation. The order of submission is the order of the plan, so both may be one queue of the device's.
//
// Order on the streams. An operation's device list begins behind the gate `go`, which its host list opens when everything before it has
// ended (the plan's entry rule); two operations without slots that follow each other need none. It ends with the signal `ended`.
//
// Where the device's streams cannot wait for the host, the thread that submits waits in a gate's place, before it submits what stands
// behind it: the call then returns when the last of its exchanges is over. Executed as one queue the device list of a plan completes,
// and that is what this is.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/lock.hpp"
#include "ccl/island_ccl.hpp"
#include "device/runtime.hpp"
#include "process/device_scratch.hpp"
#include "collective/engine_names.hpp"

namespace isthmus::collective {

struct DeviceExecutorSetup {
  device::Runtime *runtime = nullptr;
  std::shared_ptr<ccl::Library> library;
  std::shared_ptr<device::Stream> stream;
  std::shared_ptr<device::Stream> beside;                 // for stages that say so; null: they stand on the one stream too
  std::unique_ptr<ccl::IslandCommunicator> communicator;  // or null
  std::vector<int> ranks;                                 // of the communicator above us, by position in the group
  std::shared_ptr<process::DeviceScratch> scratch;        // of the device
  uint64_t first_scratch = 0;                             // bytes of it that are there from the beginning
  std::byte *arena = nullptr;                             // where the device finds the beginning of this process's arena
};

class DeviceExecutor {
 public:
  // `wake` is called when a signal has been given, on a thread of the runtime's, and when a thread that submits may go on.
  DeviceExecutor(DeviceExecutorSetup setup, device::Wake wake, void *context);
  // Ends the library's communicator, behind what was submitted. What cannot end is left behind, with all that it uses.
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor &) = delete;
  DeviceExecutor &operator=(const DeviceExecutor &) = delete;

  // Submits the device list of `op`, whose places in the arena are known. One thread at a time, in the order of the sequence numbers; may wait
  // where the runtime's queue is bounded. Throws what the runtime or the library throws; the operation is then to be failed.
  // `behind_host`: an operation without device work was submitted since the last that had some.
  // `wait`: sleeps until what it is given holds; only called where waits() is true.
  using Wait = void (*)(void *context, bool (*holds)(const void *), const void *what);
  void submit(Operation &op, bool behind_host, Wait wait, void *wait_context);
  // Before that, and before other threads see an operation with pinned memory that the device works on: for which of it other memory stands.
  void lend_for_pinned(Operation &op) const noexcept;
  // Where the device finds the rings of the ranks of the communicator that its plans read (Memory::Ring); before the first submission.
  void reaches(std::vector<std::byte *> rings) { rings_ = std::move(rings); }
  bool waits() const noexcept { return waits_; }                // the submitting thread does, in place of the stream
  std::byte *arena() const noexcept { return shared_->arena; }  // where the device finds the beginning of this process's
  bool capturing(void *stream) { return user_stream(stream).capturing(); }  // likewise
  // `op`, which was submitted and has used memory of the device on its way, has come to its end there.
  void ended_well(Operation &op) noexcept;
  void finish(uint64_t sequence) noexcept;  // signals the end of what was submitted; submit() does so but where it throws
  // The thread that submits does not come back, so what was submitted does not come to its end.
  void leave_behind() noexcept {
    left_behind_.store(true, std::memory_order_release);
    if (aborted_ns_.load() != 0) let_go();
  }

  // The host list's side. Any thread.
  void go(uint64_t sequence) noexcept { open(shared_->go, sequence); }
  void ready(uint64_t value) noexcept { open(shared_->ready, value); }
  // Of the pieces of an operation whose plain host memory is copied (Bounce): the device may take those below, and has copied them.
  void give_pieces(uint64_t sequence, uint32_t below) noexcept { open(shared_->pieces, piece_value(sequence, below)); }
  bool has_copied(uint64_t sequence, uint32_t below) const noexcept {
    return shared_->copied->value() >= piece_value(sequence, below);
  }
  uint64_t posted(uint8_t counter) const noexcept {  // by the device: plan::kStaged or plan::kTaken
    return (counter == plan::kStaged ? shared_->staged : shared_->taken)->value();
  }
  // The stream has run to the end of what was submitted.
  bool idle() const noexcept {
    return (ended(last_.load()) && !unfinished_.load()) || dead_.load(std::memory_order_acquire);
  }
  // What of the device list of `op`, which was submitted, the device may not have come past, for people: "reduce_scatter of chunk 3 of 20 or a
  // copy of chunk 3 of 20". Calls of the library and copies from its last signal on to its next, or to a gate that is closed; empty: none.
  std::string standing(const Operation &op) const;
  bool ended(uint64_t sequence) const noexcept { return shared_->ended->value() >= sequence; }
  uint64_t signalled() const noexcept {  // more whenever the device has come to a signal
    return shared_->staged->value() + shared_->taken->value() + shared_->copied->value() + shared_->ended->value();
  }
  Status status() const;  // the first failure of the library or the stream

  // After abort() nothing more is begun, and no gate holds as soon as the library keeps to that too: so it is called again until settled(),
  // which says whether nothing of ours runs on the stream any more. After some time that gives up: a thread that is stuck in the library is
  // then left behind. Any thread.
  void abort() noexcept;
  // `alone`: some rank of the group will not make the call that may run now, so it need not be given time to end. `refused`: the stream cannot be
  // stopped.
  bool settled(int64_t now_ns, bool alone, bool refused) noexcept;
  // After abort(): only stopping the stream ends what may still stand there, because the library cannot, and it has had its time. Whoever frees
  // memory would wait for it for ever. Once the stream was stopped, died().
  bool wants_stop(int64_t now_ns) const noexcept;
  bool failed() const noexcept {  // status() is not OK
    return (shared_->communicator && shared_->communicator->failed()) || shared_->stream->cuts() != cuts_.load();
  }

  // What serves the rank: the library's family, else the runtime's vendor.
  const char *family() const noexcept { return shared_->library ? shared_->library->family() : shared_->runtime->vendor(); }
  // The library's call that runs now, or nullptr.
  const char *doing() const noexcept { return shared_->communicator ? shared_->communicator->inside() : nullptr; }
  // Signals come without a wake, and some are still to come: whoever waits has to look.
  bool polls() const noexcept { return !wakes_ && !ended(last_.load(std::memory_order_relaxed)); }
  // The user's memory can only be reached by the device.
  bool private_memory() const noexcept { return private_; }
  int device() const noexcept { return shared_->stream->device(); }
  // The device has failed, or its stream was stopped: it does nothing any more of what it was given.
  void died() noexcept { dead_.store(true, std::memory_order_release); }
  // Where its work stands. The second may be null.
  std::pair<std::weak_ptr<device::Stream>, std::weak_ptr<device::Stream>> streams() const {
    return {shared_->stream, shared_->beside};
  }
  device::Runtime &runtime() const noexcept { return *shared_->runtime; }

 private:
  // Where the stream waits for the host, or the thread that submits does.
  struct Door {
    std::unique_ptr<device::StreamGate> gate;  // or null: the submitting thread looks at `value`
    std::atomic<uint64_t> value{0};            // the door has been opened so far
  };
  void open(Door &door, uint64_t value) noexcept;
  void pass(Door &door, uint64_t value, device::Stream &stream);
  void step(const Operation &op, const plan::Step &step, uint32_t c, device::Stream &stream);
  void piece(const Operation &op, uint32_t k, std::byte *there);  // of a bounce, to the device or from it
  void copy_blocks(device::Stream &stream, std::byte *to, const std::byte *from, std::span<const uint64_t> displ,
                   std::span<const uint64_t> bytes);
  static uint64_t piece_value(uint64_t sequence, uint32_t below) noexcept { return (sequence << plan::kValueBits) + below; }
  void let_go() noexcept;                        // opens all gates for good
  std::byte *lend(Operation &op, size_t bytes);  // so many of device memory; null: none are asked for
  void rejoin();                                 // the first stream goes on when the second has ended what it was given
  device::Stream &user_stream(void *handle);
  void call(const Operation &op, const plan::Step &step, const void *from, void *to, uint64_t count);
  void exchange_blocks(const Operation &op, const plan::Span &from);  // AllToAllV

  // What the queue of the stream points to; left behind with a stuck thread.
  struct Shared : DeviceExecutorSetup {
    Shared() = default;
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    ~Shared() {
      if (!scratch) return;
      scratch->give(lent);
      for (const process::DeviceScratch::Block &b : outgrown) scratch->give(b);
    }
    std::atomic<bool> cancelled{false};
    Door go, ready, pieces;
    std::unique_ptr<device::Signal> staged, taken, copied, ended;
    // The user's stream that was used last, and the events that tie it to ours.
    std::unique_ptr<device::Stream> user;
    std::unique_ptr<device::Event> before, after;
    std::unique_ptr<device::Event> forth, back;  // from the first of our streams to the second, and back
    bool parted = false;                         // the second was given work since the first last waited for it
    std::byte *in = nullptr, *out = nullptr, *borrowed = nullptr;  // of the operation that is being submitted
    // Memory on the device for sums on their way. Used in the order of the stream, so one block serves all operations in flight.
    Mutex scratch_mutex;
    process::DeviceScratch::Block lent ISTHMUS_GUARDED_BY(scratch_mutex);
    std::vector<process::DeviceScratch::Block> outgrown
        ISTHMUS_GUARDED_BY(scratch_mutex);                 // that what was submitted before may still use
    uint32_t users ISTHMUS_GUARDED_BY(scratch_mutex) = 0;  // operations in flight that have it
    std::vector<uint64_t> blocks;  // of an all_to_all_v, as ccl::Blocks has them, one list after the other
  };
  std::unique_ptr<Shared> shared_;
  std::vector<std::byte *> rings_;
  bool wakes_ = true, private_ = false, waits_ = false;
  bool endless_ = false;           // the library has no call that ends what waits on its stream
  std::atomic<uint64_t> cuts_{0};  // of the stream, when it was last given work and had none of ours
  device::Wake wake_;
  void *wake_context_;
  Wait wait_ = nullptr;  // of the submission that goes on
  void *wait_context_ = nullptr;
  std::atomic<uint64_t> last_{0};  // sequence of the last operation whose list was submitted
  std::atomic<uint64_t> last_bytes_{0};
  std::atomic<int64_t> aborted_ns_{0};
  std::atomic<bool> let_go_{false};
  std::atomic<bool> left_behind_{false}, unfinished_{false}, dead_{false};
};

}  // namespace isthmus::collective
