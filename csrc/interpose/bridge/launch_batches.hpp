// The operations of a group that ends, as far as Isthmus carries them: of several communicators, called by one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm.hpp"
#include "face.hpp"

namespace isthmus::bridge {

// Sorts the operations into batches, and launches the batches together.
// - Within a batch one thread makes the calls, one after the other. A call may wait for the exchange, where the streams of a
//   device do not wait for the host.
// - Batches do not wait for one another: each batch has a thread of its own.
// - Where all streams wait for the host, there is one batch, and the calling thread launches it.
class LaunchBatches {
 public:
  explicit LaunchBatches(Face &face) : face_(face), devices_(face.devices()) {}
  ~LaunchBatches();
  LaunchBatches(const LaunchBatches &) = delete;
  LaunchBatches &operator=(const LaunchBatches &) = delete;

  void take(BridgedCalls &&operations);  // of communicators that are ready
  bool empty() const noexcept { return batches_.empty(); }
  // What an error says in addition, where the real library's part of the group is on its way, and no batch is.
  std::string text_of_half() const;

  Outcome sound() const;  // whether none of the communicators has failed
  Outcome prepare();
  // Prepares the operations, and says whether they could begin. `last`: the batches are launched right after this check. Then
  // launch() takes the record of a single batch from this check, and does not record the batch again.
  Outcome check(bool last);
  // Begins the operations. `told` makes a vendor's number of the outcome of each batch.
  std::vector<Result> launch(const std::function<Result(const Outcome &)> &told);

 private:
  // Some stream handles mean another stream on each thread (Devices::of_thread). Where another thread makes the calls, a
  // stream of the bridge's own stands in for the calling thread's stream:
  //
  //   calling thread's stream   work |                                   | later work
  //                                  v stand_in()                        ^ stand_back()
  //   stream that stands in          | the batch, called by its thread   |
  struct StandIn {
    DevicePlace place;
    void *theirs = nullptr, *ours = nullptr;
  };
  Outcome stand_in();    // the streams that stand in wait for the calling thread's streams
  Outcome stand_back();  // the calling thread's streams wait for the streams that stood in

  Face &face_;
  Devices &devices_;
  std::vector<BridgedCalls> batches_;
  std::vector<StandIn> stand_ins_;
  OperationGroup recorded_;  // the only batch, where check() has kept it
  bool kept_ = false;
};

}  // namespace isthmus::bridge
