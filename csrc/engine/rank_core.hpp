// RankCore is what the collectives and the messages of one rank share: the rank's identity, its peers, the failure of the communicator, and the end
// of an operation. RankCore knows neither collectives nor messages.
//
// A communicator fails on all ranks. The first failure of a rank stays:
//
//   rank 0                                            rank 1
//   fail(): keeps the reason, `failed` rises
//   tell_peers(): sends Abort    ------------------>  control thread: fail(), tells nobody
//   activate(), wake(): some thread drives            activate(), wake()
//   who drives, with the right to execute             (likewise)
//     1. the links forget this rank
//     2. the device is told (DeviceEnding::abort)
//     3. waits until nothing of this rank
//        touches user memory, or is left behind
//     4. ends all operations with the reason
//   waiters wake; callbacks run                       waiters wake; callbacks run
//
// Steps 1 to 4 are RankDriver::end_after_failure(). The program's abort (Rank::abort) and a peer's death take the same way.
#pragma once

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/fork.hpp"
#include "base/lock.hpp"
#include "engine/context_names.hpp"
#include "engine/hooks.hpp"
#include "engine/mailbox.hpp"
#include "engine/operation.hpp"
#include "engine/submit_lock.hpp"
#include "p2p/flow_credit.hpp"
#include "p2p/quiet_time.hpp"
#include "topology/topology.hpp"

namespace isthmus::engine {

struct Identity {               // of one rank in one communicator
  topology::Topology topology;  // who shares memory with whom; knows no libraries
  int rank = 0, world = 1;
  uint32_t index = 0, epoch = 0;
  uint64_t serial = 0;  // of the communicator, in this process
  std::string name;
  std::string family;  // what serves this rank's device: a library's family, or a vendor; empty: nothing does
  bool on_host(int of) const noexcept { return topology.ranks[static_cast<size_t>(of)].device == "host"; }
  // Ranks are counted without gaps here and in all below. People know them by their numbers, which may have gaps: every text has those.
  int number(int of) const noexcept { return topology.number(of); }
  int number() const noexcept { return number(rank); }  // of this rank
  std::string text(int of) const;                       // "rank 2 (pid 4711 on host, island nvidia)"
};

struct PeerRank {                      // what this rank knows of another rank, or of itself
  bootstrap::Peer *process = nullptr;  // null: a rank of this process
  std::shared_ptr<const void> hold;    // of the process
  std::byte *arena = nullptr;          // its process's arena, where memory is shared and the bridge may use it
  Mailbox *mail = nullptr;
  Doorbell *bell = nullptr;
  link::Link *link = nullptr;             // for frames
  uint32_t their_index = 0;               // of the communicator in that process
  std::atomic<bool> left{false};          // the rank destroyed its side
  std::atomic<bool> left_broken{false};   // the rank's side had failed
  std::atomic<bool> left_writing{false};  // the rank's device may still write to this rank's receive slots
  // What the rank has said last about the end of the library's communicator; Well: nothing.
  std::atomic<Leaving> library_end{Leaving::Well};
  std::atomic<int64_t> left_ns{0};
  std::atomic<uint64_t> left_done{
      0};  // the last collective that the rank had ended then: what the rank sent for it is on its way
  // Of messages that were given to the link for it, and that have come from it: bytes, and one for each that comes unasked or has none.
  std::atomic<uint64_t> messages_out{0}, messages_in{0};
  std::atomic<uint64_t> left_sent{0};   // messages_out of the rank when it left
  std::atomic<int64_t> all_came_ns{0};  // when the last of that came, or it was certain that no more does; 0: before it left
  p2p::SendCredit send_credit;
  p2p::RecvCredit recv_credit;
  bool lost() const noexcept { return process && process->lost.load(std::memory_order_acquire); }
};

// The device that a rank works on, where the host cannot touch its memory.
struct RankDevice {
  device::Runtime *runtime = nullptr;  // null: there is none
  int number = -1;
  p2p::QuietTime *quiet = nullptr;  // of the device
  explicit operator bool() const noexcept { return runtime != nullptr; }
};

// Whether an operation that makes its communicator fail has met its deadline.
enum class Lateness : uint8_t { InTime, Late };

// What a rank's rooms give back when an operation ends. release() is called once for each operation, before any thread can see the end.
class OperationSink {
 public:
  virtual void release(Operation &op, Code result) noexcept = 0;

 protected:
  ~OperationSink() = default;
};

// The right to execute: one thread at a time goes on with operations and ends them. Threads only try the right, or take the right where no thread
// keeps it for long.
class ExecRight {
 public:
  bool try_take() noexcept { return !taken_.test_and_set(std::memory_order_acquire); }
  void take() noexcept {
    while (!try_take()) ::sched_yield();
  }
  void give() noexcept { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_;
};

// The program's callbacks of one rank (Completions).
struct Callbacks {
  std::atomic<uint32_t> due{0};  // and those that run
  bool running = false;          // under the lock of Completions
  std::atomic<std::thread::id> by{};
};

// Thread rules: any thread, but where a function says otherwise.
class RankCore {
 public:
  RankCore(std::shared_ptr<Context> of, Identity who, RankDevice on, Mailbox *mailbox, uint64_t bytes_of_cell,
           OperationSink &rooms, process::LocalRank &outside);
  RankCore(const RankCore &) = delete;
  RankCore &operator=(const RankCore &) = delete;

  // Failure. The first reason stays.
  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  Failure why() const;
  Status failure() const;  // why(), and what this rank was in
  void fail(Failure why, Tell whom) noexcept;
  void fail(Code code, std::string text, Tell whom) noexcept { fail(Failure{{code, std::move(text)}}, whom); }
  // Tells the other ranks "<the operation><what>". Without `ranks` a failure of a device is of this rank's.
  void fail_at(const Operation &op, Code code, std::string_view what, Lateness lateness = Lateness::InTime,
               std::vector<int> ranks = {}) noexcept;
  void tell_peers(const Failure &why) noexcept;
  void not_submitted(const Operation &op, const Error &e) noexcept;  // the submission of `op` has thrown
  bool leave() noexcept { return !left_.exchange(true); }  // failures from now on are not news. False: this rank had left
  bool left() const noexcept { return left_.load(std::memory_order_acquire); }

  // The end of an operation that was submitted.
  void end(Operation *op, Code result, std::string text) noexcept;
  void record(const Operation &op, Code result, int64_t ended_ns) noexcept;  // in the flight recorder
  std::string about(const Operation &op) const;  // why `op` ends: its description, and why the communicator has failed
  std::string describe(const Operation &op) const;

  // For a submission. Not held: the communicator has failed, perhaps because the operation's deadline has passed meanwhile.
  SubmitLock::Held lock_for(SubmitLock &lock, const Operation *op) noexcept;
  // After a failure, with the right to execute. True: the holder is stuck, and no thread waits for the holder any more.
  bool leave_behind(SubmitLock &lock) noexcept;
  std::string inside_text() const;  // the vendor's call in which a thread of ours gives the device work, or empty
  // A thread that submits waits in the place of a stream that cannot wait. The thread holds what the end of an operation needs. So the progress
  // thread brings about what the thread waits for, and sees the deadline.
  template <class Holds>
  void sleep_until(Holds holds) noexcept;
  void ask_for_interrupt() noexcept;  // fails the communicator if the program wants to stop

  // `bytes` from `source` have been used, so that rank gets credit for as many.
  void consumed(int source, uint64_t bytes) noexcept;
  void ring_peers() noexcept {  // rings the doorbells of the ranks that share memory with this rank
    for (int q = 0; q < id.world; ++q)
      if (q != id.rank && peers[q].bell) peers[q].bell->ring();
  }
  bool has_work() const noexcept { return pending.load(std::memory_order_acquire) != 0; }
  void activate() noexcept { context->progress().activate(port); }
  void wake() noexcept { context->wake(); }

  // Never changed.
  const Birth birth;
  const std::shared_ptr<Context> context;
  const Identity id;
  const RankDevice device;
  Mailbox *const mail;
  const uint64_t cell_bytes;
  process::LocalRank &port;
  std::vector<PeerRank> peers;  // by rank; filled before the first operation

  ExecRight exec;
  // The holder of the first submits collectives to the device. The holder of the second submits the copies of messages, and takes the match lock
  // after the second.
  SubmitLock collective_lock, message_lock;
  std::atomic<uint32_t> pending{0};  // operations of all kinds that are not over
  std::atomic<uint32_t> waiters{0};  // threads that wait, and drive
  std::atomic<bool> uses_device{false};
  Callbacks callbacks;

 private:
  OperationSink &rooms_;
  std::atomic<bool> failed_{false}, left_{false};
  mutable Mutex failure_mutex_;
  Failure failure_ ISTHMUS_GUARDED_BY(failure_mutex_);
};

// How an operation that is over has ended. Its ranks are counted as here, and not as people number them.
Status status_of(const RankCore &core, const Operation &op);

template <class Holds>
void RankCore::sleep_until(Holds holds) noexcept {
  constexpr int64_t kNap = 20'000'000, kAsk = 50'000'000;
  const int64_t spin_until = now_ns() + context->spin_ns();
  int64_t asked = now_ns();
  if (!holds()) context->progress().stand_in();
  while (!holds()) {
    const int64_t now = now_ns();
    if (now < spin_until) {
      ::sched_yield();
      continue;
    }
    if (now - asked > kAsk) {
      asked = now;
      ask_for_interrupt();
    }
    context->links().sleep_at_doorbell(kNap, holds);
  }
}

// The operation for which this thread waits, in RankDriver::wait(). Where this thread itself ends the operation, nothing need wake this thread.
class Awaited {
 public:
  explicit Awaited(const Operation *op) noexcept;
  ~Awaited();
  Awaited(const Awaited &) = delete;
  Awaited &operator=(const Awaited &) = delete;

 private:
  const Operation *const outer_;  // a callback or a signal handler may wait inside a wait
};

// This thread is in a call of the device's for no operation yet. It counts as one, so after a failure some thread looks whether this thread comes
// back.
class CountedCall {
 public:
  explicit CountedCall(RankCore &core) noexcept : pending_(core.pending) {
    pending_.fetch_add(1, std::memory_order_acq_rel);
  }
  ~CountedCall() { pending_.fetch_sub(1, std::memory_order_acq_rel); }
  CountedCall(const CountedCall &) = delete;
  CountedCall &operator=(const CountedCall &) = delete;

 private:
  std::atomic<uint32_t> &pending_;
};

}  // namespace isthmus::engine
