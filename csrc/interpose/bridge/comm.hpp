// A communicator that spans vendors, as the bridge has it: Isthmus' own, and what the vendors' interfaces want of one besides. Speaks no
// vendor's language.
#pragma once

#include <isthmus/isthmus.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "devices.hpp"
#include "front_door.hpp"
#include "outcome.hpp"

namespace isthmus::bridge {

enum class Call {
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

// One operation as the program asked for it. The arrays of counts are its own.
struct Operation {
  Call call = Call::AllReduce;
  const void *send = nullptr;
  void *recv = nullptr;
  uint64_t count = 0;
  isthmus_dtype dtype = ISTHMUS_UINT8;
  isthmus_redop op = ISTHMUS_SUM;
  int root = 0;  // or peer
  double scale = 1;
  uint64_t factor = 1;             // the same for integers: the bits that the type has
  const void *scale_at = nullptr;  // where it is on the device, when the stream has come so far
  void *stream = nullptr;
  double timeout = 0;  // seconds; 0: the communicator's
  std::string label;   // in errors and records; empty: the collective's name
  std::vector<uint64_t> send_counts, send_displs, recv_counts, recv_displs;
};

// The same of so many bytes. False: there is no such number.
bool as_bytes(Operation &operation);

// One or several operations in flight.
class Work {
 public:
  explicit Work(isthmus_work_t work) : work_(work) {}
  ~Work() { isthmus_work_release(work_); }
  Work(const Work &) = delete;
  Work &operator=(const Work &) = delete;
  bool over() const { return !work_ || isthmus_work_test(work_) != ISTHMUS_IN_PROGRESS; }
  Outcome outcome_now() const { return work_ ? outcome(isthmus_work_test(work_)) : Outcome{}; }
  Outcome wait() const { return work_ ? outcome(isthmus_work_wait(work_, 0)) : Outcome{}; }

 private:
  isthmus_work_t work_;
};

// A factor of sums, as a program made it for later.
struct Scale {
  isthmus_dtype dtype = ISTHMUS_FLOAT32;
  double number = 1;
  uint64_t whole = 1;  // for integers
  const void *at = nullptr;
};

// The ranks of one communicator that are in this process. A program destroys them one after the other, on one thread. But
// isthmus_comm_destroy of each rank waits a while for the others. So all ranks but the last are destroyed on threads of their own.
class LocalRanks {
 public:
  // The one object for `key`, which is the same on all ranks of the communicator.
  static std::shared_ptr<LocalRanks> of(const std::string &key);
  explicit LocalRanks(std::string k) : key(std::move(k)) {}
  ~LocalRanks();
  void joined();  // one rank more
  // One rank less. `act` destroys that rank: on a thread of its own, or, for the last rank, on this thread. The call for the last
  // rank waits for the threads of the others.
  void leave(std::function<void()> act);
  const std::string key;

 private:
  std::mutex mutex_;
  int living_ = 0;                    // under mutex_
  std::vector<std::thread> leaving_;  // under mutex_
};

struct Traits {
  int rank = 0, size = 0;
  Place place;
  bool blocking = true;
  std::string name;
  std::shared_ptr<LocalRanks> local_ranks;
  std::shared_ptr<void>
      config;             // what the program asked for, as the face keeps it; parts get the same where they ask for nothing
  bool promised = false;  // it stands for one that is made when a group ends, and is never made itself
  std::string vendors{};  // of its ranks, each by the first letter of its family; empty: not known
};

// The meeting's settings and ours, as in isthmus_options: the device that the thread works on, and the library that the door found.
std::string settings_of(const interpose::FrontDoor &door, const Place &place);

class Comm : public std::enable_shared_from_this<Comm> {
 public:
  explicit Comm(Traits traits) : traits_(std::move(traits)) { traits_.local_ranks->joined(); }
  ~Comm();
  const Traits &traits() const noexcept { return traits_; }

  // How it came to be: one of both, once.
  Outcome init(isthmus_meeting_t meeting, const std::string &settings);
  void adopt(isthmus_comm_t comm);
  void fail(Outcome why);  // it will not be
  void pass_on();          // the vendor's library has made it, and nobody will come to this one

  Outcome status();                         // ISTHMUS_IN_PROGRESS: it is still being made
  isthmus_comm_t get() noexcept;            // null: it is still being made, or could not be
  bool blocks() noexcept;                   // its calls wait for the exchange: no stream of its device waits for the host
  Outcome run(const Operation &operation);  // waits for a barrier
  Outcome open();                           // whether it takes operations
  Outcome finalize();                       // waits for all that was begun
  Outcome destroy();                        // waits likewise
  void abort();
  void note(std::shared_ptr<Work> work);
  // What the call that has just begun it can say of it. Where calls wait for the exchange, that is how the exchange ended.
  Outcome known(const Work &work);

  int add(const Scale &scale);  // its number
  bool find(int number, Scale &scale);
  bool remove(int number);
  int next_part() { return parts_++; }  // calls that make parts: as many on all ranks

 private:
  void settle(isthmus_comm_t comm, Outcome outcome);

  const Traits traits_;
  std::mutex mutex_;
  std::condition_variable settled_;
  bool starting_ = true, finalized_ = false, aborted_ = false;  // under mutex_
  isthmus_comm_t comm_ = nullptr;                               // under mutex_, until it is destroyed
  Outcome failure_;                                             // under mutex_: of init
  std::deque<std::shared_ptr<Work>> works_;                     // under mutex_; in the order of their calls
  std::map<int, Scale> scales_;                                 // under mutex_
  int next_scale_ = 0;                                          // under mutex_
  std::atomic<int> parts_{0};
  std::atomic<int> blocks_{-1};  // -1: not known yet
};
using CommPtr = std::shared_ptr<Comm>;

// Calls the one of Isthmus' functions that it is. In a group `work` is null.
Outcome submit(isthmus_comm_t comm, const Operation &operation, isthmus_work_t *work);
// Several, together, on one thread: they are checked when they are recorded, and nothing of them begins before they are launched,
// which waits where one of them is a barrier. Those of one communicator are one operation for all streams that they name, as NCCL has it:
// none begins before all these streams have come to it, and none of the streams goes on before all have ended.
using Operations = std::vector<std::pair<CommPtr, Operation>>;
class OperationGroup {
 public:
  OperationGroup() = default;
  ~OperationGroup();  // what was not launched is given up
  OperationGroup(const OperationGroup &) = delete;
  OperationGroup &operator=(const OperationGroup &) = delete;
  Outcome record(const Operations &operations);
  Outcome launch();

 private:
  struct Part {
    CommPtr comm;
    std::vector<void *> streams;  // each once
  };
  Outcome join_streams() const;

  bool open_ = false, waits_ = false;
  std::vector<Part> parts_;  // of each communicator one
};
Outcome run_group(const Operations &operations);  // at once

}  // namespace isthmus::bridge
