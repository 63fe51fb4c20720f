// A communicator that spans vendors, as the bridge has the communicator: a communicator of Isthmus, and what the vendors'
// interfaces want of a communicator besides. No vendor's names or numbers stand in this file.
#pragma once

#include <isthmus/isthmus.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/lock.hpp"
#include "devices.hpp"
#include "front_door.hpp"
#include "outcome.hpp"

namespace isthmus::bridge {

enum class OperationKind {
  AllReduce,
  Reduce,
  Broadcast,
  AllGather,
  AllGatherV,
  ReduceScatter,
  ReduceScatterV,
  AllToAll,
  AllToAllV,
  Gather,
  Scatter,
  Send,
  Recv,
  Barrier
};

// The factor of ISTHMUS_PREMUL_SUM.
struct Factor {
  isthmus_dtype dtype = ISTHMUS_FLOAT32;
  double number = 1;
  uint64_t bits = 1;  // the same for integers: the bits that the type has
  const void *at =
      nullptr;  // where the factor lies on the device, when the stream comes to the operation; null: it is known
};

// One operation as the program asked for it. The arrays of counts are copies.
struct BridgedCall {
  OperationKind call = OperationKind::AllReduce;
  const void *send = nullptr;
  void *recv = nullptr;
  uint64_t count = 0;
  isthmus_dtype dtype = ISTHMUS_UINT8;
  isthmus_redop op = ISTHMUS_SUM;
  int root = 0;  // or peer
  Factor factor;
  void *stream = nullptr;
  double timeout = 0;  // seconds; 0: the communicator's
  std::string label;   // in errors and records; empty: the collective's name
  std::vector<uint64_t> send_counts, send_displs, recv_counts, recv_displs;
};

// Makes of the operation an operation on as many bytes. False: the number of bytes does not fit into 64 bits.
bool as_bytes(BridgedCall &operation);

// One or several operations in flight.
class LaunchedWork {
 public:
  explicit LaunchedWork(isthmus_work_t work) : work_(work) {}
  ~LaunchedWork() { isthmus_work_release(work_); }
  LaunchedWork(const LaunchedWork &) = delete;
  LaunchedWork &operator=(const LaunchedWork &) = delete;
  bool over() const { return !work_ || isthmus_work_test(work_) != ISTHMUS_IN_PROGRESS; }
  Outcome outcome_now() const { return work_ ? outcome(isthmus_work_test(work_)) : Outcome{}; }
  Outcome wait() const { return work_ ? outcome(isthmus_work_wait(work_, 0)) : Outcome{}; }
  // Whether it is over within so many seconds.
  bool over_within(double seconds) const {
    if (work_ && seconds > 0) isthmus_work_wait(work_, seconds);
    return over();
  }

 private:
  isthmus_work_t work_;
};

// The ranks of one communicator that are in this process. A program destroys the ranks one after the other, on one thread.
// But isthmus_comm_destroy of each rank waits a while for the other ranks. So all ranks but the last are destroyed on
// threads of their own:
//
//   the program's thread   leave(rank 0) | leave(rank 1): destroys rank 1 ... joins the other thread | returns
//                                |                            ^ waits for each other ^
//   a thread of its own          \------ destroys rank 0 ......................../
class LocalRanks {
 public:
  // The one object for `key`, which is the same on all ranks of the communicator.
  static std::shared_ptr<LocalRanks> of(const std::string &key);
  explicit LocalRanks(std::string k) : key(std::move(k)) {}
  ~LocalRanks();
  void joined();  // one rank more
  // One rank less. `act` destroys that rank: on a thread of its own, or, for the last rank, on this thread. The call for the
  // last rank waits for the threads of the others.
  void leave(std::function<void()> act);
  const std::string key;

 private:
  Mutex mutex_;  // held while a thread is started
  int living_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> leaving_ ISTHMUS_GUARDED_BY(mutex_);
};

struct Traits {
  int rank = 0, size = 0;
  DevicePlace place;
  bool blocking = true;
  std::string name;
  std::shared_ptr<LocalRanks> local_ranks;
  // The configuration that the program asked for, as the face keeps it. A part gets the same, where it asks for none.
  std::shared_ptr<void> config;
  bool promised = false;   // stands for a communicator that a group makes when the group ends (Target); never made itself
  bool deadlines = false;  // Isthmus' deadlines of operations hold: the vendor's calls have deadlines, or no abort
};

// The settings for isthmus_options: the device that the thread works on, and the library that the front door found.
std::string settings_of(const interpose::FrontDoor &door, const DevicePlace &place);

// Any thread may call any function. A program may abort or destroy a communicator while another thread still makes it.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  explicit Comm(Traits traits) : traits_(std::move(traits)) { traits_.local_ranks->joined(); }
  ~Comm();
  const Traits &traits() const noexcept { return traits_; }
  Guarded<std::string> vendors;  // the first letter of the vendor's family, of each rank; empty before init(), and of a part

  // Exactly one of these is called, once.
  Outcome init(isthmus_meeting_t meeting, const std::string &settings, std::string of_vendors);
  void adopt(isthmus_comm_t comm);
  void fail(Outcome why);  // the communicator cannot be made
  void pass_on();          // the vendor's library has made the communicator, and no call comes here any more

  Outcome
  status();  // ISTHMUS_IN_PROGRESS: the communicator is still being made, or was revoked and has operations in flight
  isthmus_comm_t get() noexcept;              // null: the communicator is still being made, or could not be made
  bool blocks() noexcept;                     // calls wait for the exchange, as no stream of the device waits for the host
  Outcome run(const BridgedCall &operation);  // a barrier has ended when this returns
  Outcome open();                             // whether the communicator takes operations
  Outcome finalize();                         // waits for all operations that were begun
  Outcome drain();    // waits likewise, and until it is known whose the communicator is; an abort by another thread ends it
  Outcome destroy();  // waits likewise
  // Ends the communicator of this rank, now. Where this rank has ended all that it has begun, the other ranks hear of it as of a
  // destroy: what they have in flight ends well, and later operations with this rank fail. Programs end a good run like that
  // (PyTorch up to 2.5). Where something of this rank's is pending, it fails, and so does the communicator on all ranks.
  void abort();
  // Ends all operations, on all ranks, and takes no more. Does not wait. Communicators can still be made from this one, among the
  // ranks that have revoked it. Once is like several times.
  Outcome revoke();
  bool revoked() const noexcept { return revoked_; }
  void note(std::shared_ptr<LaunchedWork> work);
  // What the call that has just begun the work can say of the work. Where calls wait for the exchange: how the exchange ended.
  Outcome known(const LaunchedWork &work);

  int add(const Factor &factor);  // the factor's number
  bool find(int number, Factor &factor);
  bool remove(int number);
  int next_part() { return parts_++; }  // the number of a call that makes parts: the same on all ranks

  // A thread is in a call that begins work of the communicator, from here to the end of the block.
  class InCall {
   public:
    explicit InCall(Comm &comm) noexcept : comm_(comm) { comm_.in_calls_.fetch_add(1); }
    ~InCall() { comm_.in_calls_.fetch_sub(1); }
    InCall(const InCall &) = delete;
    InCall &operator=(const InCall &) = delete;

   private:
    Comm &comm_;
  };

 private:
  void settle(isthmus_comm_t comm, Outcome outcome);

  const Traits traits_;
  Mutex mutex_;  // held while works that are over are released
  Condition settled_;
  bool starting_ ISTHMUS_GUARDED_BY(mutex_) = true, finalized_ ISTHMUS_GUARDED_BY(mutex_) = false;
  bool aborted_ ISTHMUS_GUARDED_BY(mutex_) = false;
  bool gone_ ISTHMUS_GUARDED_BY(mutex_) = false;  // aborted, or the vendor's: nothing here waits for it to be made
  isthmus_comm_t comm_ ISTHMUS_GUARDED_BY(mutex_) = nullptr;                    // until it is destroyed
  Outcome failure_ ISTHMUS_GUARDED_BY(mutex_);                                  // why there is no communicator
  std::deque<std::shared_ptr<LaunchedWork>> works_ ISTHMUS_GUARDED_BY(mutex_);  // in the order of their calls
  std::map<int, Factor> factors_ ISTHMUS_GUARDED_BY(mutex_);
  int next_factor_ ISTHMUS_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> revoked_{false};
  std::atomic<int> in_calls_{0};
  std::atomic<int> parts_{0};
  std::atomic<int> blocks_{-1};  // -1: not known yet
};
using CommPtr = std::shared_ptr<Comm>;
Outcome takes_operations(Comm &comm);  // made, not failed, not finalized, not revoked
Outcome serves_parts(Comm &comm);      // whether communicators can be made from it: made and not failed, or revoked

// Calls Isthmus' function for the operation. In a group `work` is null.
Outcome submit(isthmus_comm_t comm, const BridgedCall &operation, isthmus_work_t *work);
// Several operations, together, called by one thread:
// 1. record() checks them. Nothing of them begins.
// 2. launch() begins them, and waits where one of them is a barrier.
// As at NCCL, the operations of one communicator are one operation for all streams that they name. No operation begins before
// all these streams have come to the group. No stream goes on before all operations have ended:
//
//   stream A   a kernel | waits for B | the operations of the group | the next kernel
//   stream B   a longer kernel ...... | the operations of the group | the next kernel
using BridgedCalls = std::vector<std::pair<CommPtr, BridgedCall>>;
class OperationGroup {
 public:
  OperationGroup() = default;
  ~OperationGroup();  // gives up what was not launched
  OperationGroup(const OperationGroup &) = delete;
  OperationGroup &operator=(const OperationGroup &) = delete;
  Outcome record(const BridgedCalls &operations);
  Outcome launch();

 private:
  struct Part {
    CommPtr comm;
    std::unique_ptr<Comm::InCall> in_call;
    std::vector<void *> streams;  // each once
    // Of its operations, where the group has several communicators: how one ends says nothing of the others. Else of the group.
    std::vector<std::shared_ptr<LaunchedWork>> works;
  };
  Outcome join_streams() const;

  bool open_ = false, waits_ = false;
  std::vector<Part> parts_;  // one of each communicator
};
Outcome run_group(const BridgedCalls &operations);  // both steps

}  // namespace isthmus::bridge
